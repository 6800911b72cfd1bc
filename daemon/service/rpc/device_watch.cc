#include "daemon/service/rpc/device_watch.h"

#include <optional>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "berth/v1/device.pb.h"
#include "common/status_macros.h"
#include "daemon/broker/event_loop.h"
#include "daemon/service/conversion/device_conversion.h"
#include "daemon/service/conversion/status_conversion.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

namespace berth::service {
namespace {

absl::Status Stopping() { return Refuse(Reason::kShuttingDown, "the daemon is stopping"); }

absl::Status TooMany(absl::string_view what, size_t current, size_t limit) {
  return Refuse(Reason::kLimit, "{what}: {current} are open, limit {limit}",
                {{"what", what}, {"current", current}, {"limit", limit}});
}

}  // namespace

// One call. At most one write is in flight; a change meanwhile only marks the call as behind. Holds a reference to
// itself until gRPC is done with it.
class DeviceWatches::Watch final : public Reactor, public std::enable_shared_from_this<Watch> {
 public:
  // `context` is the call's; `seen` is the token of the state that its caller has seen.
  Watch(DeviceWatches* watches, grpc::CallbackServerContext* context, core::Caller caller, bool of_operator,
        std::string seen)
      : watches_(*watches),
        context_(*context),
        connection_(context->peer()),
        caller_(std::move(caller)),
        of_operator_(of_operator),
        seen_(std::move(seen)) {}

  const std::string& connection() const { return connection_; }
  uint32_t uid() const { return core::UserOf(caller_.tenant); }
  const core::Tenant& tenant() const { return caller_.tenant; }
  const core::Caller& caller() const { return caller_; }
  bool of_operator() const { return of_operator_; }

  // Sends the first state, or refuses.
  void Begin(const absl::Status& admitted) {
    self_ = shared_from_this();
    begun_.store(true, std::memory_order_release);
    if (!admitted.ok()) return End(admitted);
    // Changed() reports later changes, as the watch is admitted already.
    if (seen_ != watches_.Token()) Changed();
  }

  // Handles a change of the devices.
  void Changed() ABSL_LOCKS_EXCLUDED(mu_) {
    {
      MutexLock lock(&mu_);
      behind_ = true;
      if (finished_) return;
      if (writing_) {
        // The write then fails, and ends the call. Other threads handle the consequences.
        if (!done_ && EventLoop::SteadyNow() - sent_ >= kSlow) context_.TryCancel();
        return;
      }
      writing_ = true;
    }
    SendLatest();
  }

  void End(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      MutexLock lock(&mu_);
      if (finished_) return;
      finished_ = true;
    }
    Finish(ToGrpc(status));
  }

  void OnWriteDone(bool ok) override {
    SeeBegun();
    {
      MutexLock lock(&mu_);
      writing_ = ok && behind_ && !finished_;
      if (ok && !writing_) return;
    }
    if (ok) return SendLatest();
    End(absl::CancelledError("the caller is gone"));
  }
  void OnCancel() override {
    SeeBegun();
    End(absl::CancelledError("the caller is gone"));
  }
  void OnDone() override {
    SeeBegun();
    // Another thread may still be in Changed().
    const std::shared_ptr<Watch> self = std::move(self_);
    {
      MutexLock lock(&mu_);
      done_ = true;
    }
    watches_.Remove(self);
  }

 private:
  // gRPC passes the watch between threads with synchronisation that ThreadSanitizer does not see.
  void SeeBegun() const { begun_.load(std::memory_order_acquire); }

  // Requires: this call set writing_.
  void SendLatest() ABSL_LOCKS_EXCLUDED(mu_) {
    {
      MutexLock lock(&mu_);
      // Cleared before the read: a change after the read triggers the next write.
      behind_ = false;
    }
    // The token must name a state no later than the devices read below.
    const std::string token = watches_.Token();
    std::vector<core::DeviceView> devices;
    const absl::Status known = watches_.broker_.Read([&](const core::Core& core) {
      devices = core.ListDevices();
      return core.Authenticate(caller_);
    });
    if (!known.ok()) return End(known);
    response_.Clear();
    // Read after the core: a change since the core's read is not in the token yet, or is included here.
    const std::map<uint32_t, DeviceLook> looks = watches_.monitor_client_.Look(EventLoop::SteadyNow());
    for (const core::DeviceView& device : devices) {
      ToProto(device, response_.add_devices());
      const DeviceCondition& condition = looks.at(device.ordinal).condition;
      if (condition.events_total == 0) continue;
      v1::DeviceReports* const reports = response_.add_reports();
      reports->set_device(device.ordinal);
      reports->set_uuid(device.uuid);
      ToProto(condition.events, reports->mutable_events());
      reports->set_events_total(condition.events_total);
    }
    response_.set_resume_token(token);
    MutexLock lock(&mu_);
    // Under the lock, so that no write follows Finish().
    if (finished_) return;
    sent_ = EventLoop::SteadyNow();
    StartWrite(&response_);
  }

  DeviceWatches& watches_;
  // Valid until OnDone().
  grpc::CallbackServerContext& context_;
  const std::string connection_;
  const core::Caller caller_;
  const bool of_operator_;
  const std::string seen_;
  std::shared_ptr<Watch> self_;
  std::atomic<bool> begun_ = false;
  // The answer of the write in flight.
  v1::WatchDevicesResponse response_;

  Mutex mu_;
  bool behind_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  // Start of the current or last write.
  absl::Time sent_ ABSL_GUARDED_BY(mu_);
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  // True once the context is invalid.
  bool done_ ABSL_GUARDED_BY(mu_) = false;
};

std::string DeviceWatches::Token() const { return absl::StrCat(absl::Hex(life_), "-", revision_.load()); }

DeviceWatches::Reactor* DeviceWatches::Start(grpc::CallbackServerContext* context,
                                             const absl::StatusOr<core::Caller>& caller, bool of_operator,
                                             const std::string& resume_token, absl::Status* outcome) {
  const auto watch =
      std::make_shared<Watch>(this, context, caller.value_or(core::Caller()), of_operator, resume_token);
  Watch* const reactor = watch.get();
  *outcome = caller.ok() ? Admit(watch) : caller.status();
  watch->Begin(*outcome);
  return reactor;
}

absl::Status DeviceWatches::Admit(const std::shared_ptr<Watch>& watch) {
  BERTH_RETURN_IF_ERROR(broker_.Read([&](const core::Core& core) { return core.Authenticate(watch->caller()); }));
  MutexLock lock(&mu_);
  if (shutting_down_) return Stopping();
  const auto of_connection = per_connection_.find(watch->connection());
  if (of_connection != per_connection_.end() && of_connection->second >= kMaxPerConnection) {
    return TooMany("watches of a connection", of_connection->second, kMaxPerConnection);
  }
  BERTH_RETURN_IF_ERROR(watch->of_operator() ? AdmitOperatorsLocked() : AdmitClientsLocked(*watch));
  ++per_connection_[watch->connection()];
  watches_.insert(watch);
  return absl::OkStatus();
}

absl::Status DeviceWatches::AdmitOperatorsLocked() {
  if (of_operators_ >= kMaxOfOperators) return TooMany("operators' watches", of_operators_, kMaxOfOperators);
  ++of_operators_;
  return absl::OkStatus();
}

absl::Status DeviceWatches::AdmitClientsLocked(const Watch& watch) {
  const auto uid = per_uid_.find(watch.uid());
  if (uid != per_uid_.end() && uid->second >= kMaxPerUid) {
    return TooMany(absl::StrCat("watches of uid ", watch.uid()), uid->second, kMaxPerUid);
  }
  const auto tenant = per_tenant_.find(watch.tenant());
  const size_t of_tenant = tenant == per_tenant_.end() ? 0 : tenant->second;
  const std::optional<uint64_t> quota = quotas_.Of(watch.tenant()).streams;
  if (quota.has_value() && of_tenant >= *quota) return TooMany("watches of the tenant", of_tenant, *quota);
  ++per_uid_[watch.uid()];
  ++per_tenant_[watch.tenant()];
  return absl::OkStatus();
}

void DeviceWatches::Remove(const std::shared_ptr<Watch>& watch) {
  MutexLock lock(&mu_);
  if (watches_.erase(watch) == 0) return;
  if (--per_connection_[watch->connection()] == 0) per_connection_.erase(watch->connection());
  if (watch->of_operator()) {
    --of_operators_;
    return;
  }
  if (--per_uid_[watch->uid()] == 0) per_uid_.erase(watch->uid());
  if (--per_tenant_[watch->tenant()] == 0) per_tenant_.erase(watch->tenant());
}

void DeviceWatches::SetQuotas(const core::QuotaTable& quotas) {
  MutexLock lock(&mu_);
  quotas_ = quotas;
}

void DeviceWatches::Changed() {
  ++revision_;
  std::vector<std::shared_ptr<Watch>> watches;
  {
    MutexLock lock(&mu_);
    watches.assign(watches_.begin(), watches_.end());
  }
  for (const auto& watch : watches) watch->Changed();
}

void DeviceWatches::ShutDown() {
  std::vector<std::shared_ptr<Watch>> watches;
  {
    MutexLock lock(&mu_);
    shutting_down_ = true;
    watches.assign(watches_.begin(), watches_.end());
  }
  for (const auto& watch : watches) watch->End(Stopping());
}

size_t DeviceWatches::open() const {
  MutexLock lock(&mu_);
  return watches_.size();
}

}  // namespace berth::service
