#include "daemon/core/core.h"

#include <utility>

#include "common/error.h"

namespace berth::core {

class Core::Impl {
 public:
  Impl(Config config, DrawId draw_id) : config_(std::move(config)), draw_id_(std::move(draw_id)) {}
  void Refuse(CallId call, Effects* effects) {
    effects->push_back({++number_, Reply{call, berth::Refuse(Reason::kUnsupported, "not served")}});
  }
  absl::Status Unserved() const { return berth::Refuse(Reason::kUnsupported, "not served"); }

 private:
  const Config config_;
  const DrawId draw_id_;
  uint64_t number_ = 0;
};

Core::Core(Config config, DrawId draw_id) : impl_(std::make_unique<Impl>(std::move(config), std::move(draw_id))) {}
Core::~Core() = default;

absl::StatusOr<SessionId> Core::OpenSession(absl::Time, const Secret&, const Tenant&, absl::string_view,
                                            const ProcessInfo&) {
  return impl_->Unserved();
}
absl::StatusOr<ChannelId> Core::JoinSession(absl::Time, SessionId, const Secret&, const Tenant&, const ProcessInfo&) {
  return impl_->Unserved();
}
void Core::LifelineHungUp(absl::Time, SessionId, Effects*) {}
void Core::ChannelHungUp(absl::Time, ChannelId, Effects*) {}
void Core::ProcessGone(absl::Time, ChannelId, Effects*) {}
void Core::DeliveryAcknowledged(absl::Time, ChannelId, uint64_t, Effects*) {}
void Core::ImportLetGo(absl::Time, ChannelId, ImportId, Effects*) {}
void Core::Acquire(absl::Time, CallId call, const Caller&, const RequestTag&, const AcquireRequest&, Effects* effects) {
  impl_->Refuse(call, effects);
}
void Core::Release(absl::Time, CallId call, const Caller&, const RequestTag&, AcquisitionId, Effects* effects) {
  impl_->Refuse(call, effects);
}
void Core::Allocate(absl::Time, CallId call, const Caller&, const RequestTag&, const AllocateRequest&,
                    Effects* effects) {
  impl_->Refuse(call, effects);
}
void Core::Free(absl::Time, CallId call, const Caller&, const RequestTag&, const FreeRequest&, Effects* effects) {
  impl_->Refuse(call, effects);
}
void Core::Grant(absl::Time, CallId call, const Caller&, const RequestTag&, const GrantRequest&, Effects* effects) {
  impl_->Refuse(call, effects);
}
void Core::Import(absl::Time, CallId call, const Caller&, const RequestTag&, const ImportRequest&, Effects* effects) {
  impl_->Refuse(call, effects);
}
void Core::Forget(absl::Time, CallId call, const Caller&, uint64_t, Effects* effects) { impl_->Refuse(call, effects); }
void Core::CancelCall(absl::Time, CallId, Effects*) {}
void Core::BlockCreated(absl::Time, BlockId, const absl::Status&, Effects*) {}
void Core::BlockReleased(absl::Time, BlockId, const absl::Status&, Effects*) {}
void Core::WorkerUp(absl::Time, uint32_t, Effects*) {}
void Core::WorkerDown(absl::Time, uint32_t, bool, Effects*) {}
absl::Time Core::next_deadline() const { return absl::InfiniteFuture(); }
void Core::Tick(absl::Time, Effects*) {}
void Core::ShutDown(absl::Time, Effects*) {}
absl::StatusOr<PoolView> Core::SetPoolCap(absl::Time, absl::string_view, uint64_t, Effects*) {
  return impl_->Unserved();
}
absl::StatusOr<DeviceView> Core::SetDeviceBudget(absl::Time, uint32_t, Bytes, Effects*) { return impl_->Unserved(); }
absl::StatusOr<SessionView> Core::EndSession(absl::Time, const Caller&, SessionId, Effects*) {
  return impl_->Unserved();
}
absl::Status Core::Authenticate(const Caller&) const { return impl_->Unserved(); }
absl::StatusOr<SessionView> Core::GetSession(const Caller&, SessionId) const { return impl_->Unserved(); }
std::vector<SessionView> Core::ListSessions(const Caller&) const { return {}; }
absl::StatusOr<PoolView> Core::GetPool(absl::string_view) const { return impl_->Unserved(); }
std::vector<PoolView> Core::ListPools() const { return {}; }
std::vector<PermitView> Core::ListPermits(const Caller&, absl::string_view) const { return {}; }
std::vector<WaiterView> Core::ListWaiters(const Caller&, absl::string_view) const { return {}; }
std::vector<BlockView> Core::ListBlocks(const Caller&) const { return {}; }
UsageView Core::GetUsage(const Caller&) const { return {}; }
std::vector<DeviceView> Core::ListDevices() const { return {}; }
absl::Status Core::CheckBooks() const { return absl::OkStatus(); }

}  // namespace berth::core
