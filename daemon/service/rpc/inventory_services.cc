// InventoryService and HistoryService.

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "berth/v1/history.grpc.pb.h"
#include "berth/v1/inventory.grpc.pb.h"
#include "common/device_score.h"
#include "common/mutex.h"
#include "common/terminal_text.h"
#include "daemon/broker/device_monitor_client.h"
#include "daemon/broker/history_writer.h"
#include "daemon/service/conversion/conversion.h"
#include "daemon/service/conversion/device_conversion.h"
#include "daemon/service/conversion/history_conversion.h"
#include "daemon/service/rpc/services.h"
#include "daemon/service/rpc/unary_call.h"

namespace berth::service {

// InventoryService reports the node's hardware: the client's last data, with the core's data of each device. No call
// waits for a driver.

namespace {

// The enums have the wire's numbers.
static_assert(static_cast<int>(DeviceHealth::kSilent) == v1::Condition::SILENT);

void ToProto(const MetricValue& metric, v1::Figure* out) {
  if (metric.known()) {
    out->set_value(metric.value);
  } else {
    out->set_absent(WhyAbsent(metric));
  }
}

using Mutable = v1::Figure* (v1::Condition::*)();

// Destination of each metric, in the order of DeviceMetric.
constexpr std::array<Mutable, kDeviceMetrics> kMetrics = {&v1::Condition::mutable_temperature,
                                                          &v1::Condition::mutable_slowdown_temperature,
                                                          &v1::Condition::mutable_power,
                                                          &v1::Condition::mutable_power_limit,
                                                          &v1::Condition::mutable_clock,
                                                          &v1::Condition::mutable_max_clock,
                                                          &v1::Condition::mutable_memory_clock,
                                                          &v1::Condition::mutable_utilisation,
                                                          &v1::Condition::mutable_memory_utilisation,
                                                          &v1::Condition::mutable_total_bytes,
                                                          &v1::Condition::mutable_free_bytes,
                                                          &v1::Condition::mutable_ecc_mode,
                                                          &v1::Condition::mutable_corrected_errors,
                                                          &v1::Condition::mutable_uncorrected_errors,
                                                          &v1::Condition::mutable_mig_mode,
                                                          &v1::Condition::mutable_nvlinks};

void ToProto(const DeviceHardware& hardware, v1::Hardware* out) {
  const GpuCapability capability = hardware.capability;
  out->set_pci_id(hardware.pci_id);
  out->set_compute_capability(static_cast<uint32_t>(10 * capability.major + capability.minor));
  out->set_warp_size(capability == GpuCapability() ? 0 : GpuCapability::kWarpSize);
  out->set_tensor_cores(capability.tensor_cores());
  out->set_fp64_tensor_cores(capability.fp64_tensor_cores());
  out->set_async_copy(capability.async_copy());
  out->set_cluster_launch(capability.cluster_launch());
  out->set_tensor_memory_accelerator(capability.tensor_memory_accelerator());
  out->set_compile_architecture(NvrtcArchitecture(capability));
  out->set_multiprocessors(hardware.multiprocessors);
  out->set_threads_per_multiprocessor(hardware.threads_per_multiprocessor);
  out->set_shared_bytes_per_block(hardware.shared_bytes_per_block);
  out->set_l2_bytes(hardware.l2_bytes);
  out->set_mig_parent(hardware.mig_parent);
}

void ToProto(const DeviceCondition& condition, absl::Time now, v1::Condition* out) {
  out->set_health(static_cast<v1::Condition::Health>(condition.health));
  out->set_trouble(condition.trouble);
  if (condition.read_at.has_value()) {
    service::ToProto(*condition.read_at, out->mutable_read_time());
    out->set_age_ms(static_cast<uint64_t>(
        absl::ToInt64Milliseconds(std::max(now - *condition.read_at, absl::ZeroDuration()))));
  }
  for (size_t i = 0; i < kDeviceMetrics; ++i) ToProto(condition.metrics.values[i], (out->*kMetrics[i])());
  service::ToProto(condition.events, out->mutable_events());
  out->set_events_total(condition.events_total);
  for (const DeviceCondition::Instance& instance : condition.instances) {
    v1::MigInstance* const to = out->add_mig_instances();
    to->set_uuid(instance.uuid);
    to->set_multiprocessors(instance.multiprocessors);
    to->set_total_bytes(instance.total.count());
  }
}

v1::Topology::Reach ReachOf(uint32_t from, uint32_t to, const DeviceCondition& condition) {
  if (from == to) return v1::Topology::SELF;
  const uint64_t bit = uint64_t{1} << to;
  if ((condition.peers.known & bit) == 0) return v1::Topology::REACH_UNSPECIFIED;
  if ((condition.peers.nvlink & bit) != 0) return v1::Topology::NVLINK;
  return (condition.peers.any & bit) != 0 ? v1::Topology::PCIE : v1::Topology::NONE;
}

class InventoryService final : public v1::InventoryService::CallbackService {
 public:
  InventoryService(ServiceContext context, const DeviceMonitorClient* monitor_client)
      : context_(context), monitor_client_(*monitor_client) {}

  grpc::ServerUnaryReactor* ListInventory(grpc::CallbackServerContext* context, const v1::ListInventoryRequest*,
                                          v1::ListInventoryResponse* response) override {
    return ServeLook(
        context_, context,
        [](const core::Core& core, const core::Caller&) {
          return absl::StatusOr<std::vector<core::DeviceView>>(core.ListDevices());
        },
        [&](const std::vector<core::DeviceView>& views) {
          const absl::Time now = EventLoop::SteadyNow();
          const std::map<uint32_t, DeviceLook> looks = monitor_client_.Look(now);
          for (const core::DeviceView& view : views) {
            v1::DeviceInventory* const to = response->add_devices();
            service::ToProto(view, to->mutable_device());
            const DeviceLook& look = looks.at(view.ordinal);
            ToProto(look.hardware, to->mutable_hardware());
            ToProto(look.condition, now, to->mutable_condition());
            to->set_score(view.score);
            to->set_score_version(kDeviceScoreVersion);
          }
        });
  }

  grpc::ServerUnaryReactor* GetTopology(grpc::CallbackServerContext* context, const v1::GetTopologyRequest*,
                                        v1::Topology* response) override {
    return ServeLook(
        context_, context,
        [](const core::Core& core, const core::Caller&) {
          return absl::StatusOr<std::vector<core::IslandView>>(core.ListIslands());
        },
        [&](const std::vector<core::IslandView>& islands) {
          const std::map<uint32_t, DeviceLook> looks = monitor_client_.Look(EventLoop::SteadyNow());
          std::optional<absl::Time> oldest;
          for (const core::IslandView& view : islands) {
            const DeviceCondition& condition = looks.at(view.ordinal).condition;
            v1::Topology::Row* const to = response->add_rows();
            to->set_device(view.ordinal);
            to->set_uuid(view.uuid);
            to->set_island(view.island);
            to->set_generation(view.generation);
            ToProto(condition.metrics[DeviceMetric::kNvlinks], to->mutable_nvlinks());
            for (const core::IslandView& other : islands) {
              to->add_reaches(ReachOf(view.ordinal, other.ordinal, condition));
            }
            if (!condition.read_at.has_value()) continue;
            oldest = oldest.has_value() ? std::min(*oldest, *condition.read_at) : *condition.read_at;
          }
          if (oldest.has_value()) service::ToProto(*oldest, response->mutable_read_time());
        });
  }

 private:
  const ServiceContext context_;
  const DeviceMonitorClient& monitor_client_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeInventoryService(const ServiceContext& context,
                                                    const DeviceMonitorClient* monitor_client) {
  return std::make_unique<InventoryService>(context, monitor_client);
}

// HistoryService: the shim of the history (daemon/broker/history_writer.h). A disk may be slow to return records: the
// service answers later, and no thread waits for the disk.

namespace {

// A call that waits for its page, or for its cancellation. Owns itself.
class PageCall final : public grpc::ServerUnaryReactor {
 public:
  explicit PageCall(v1::ListHistoryResponse* response) : response_(*response), place_(std::make_shared<Place>(this)) {}
  PageCall(const PageCall&) = delete;
  PageCall& operator=(const PageCall&) = delete;

  // Requests the answer from the history.
  void Ask(HistoryWriter* history, HistoryQuery query) {
    history->Query(std::move(query), [place = place_, history](absl::StatusOr<HistoryWriter::Page> page) {
      place->Finish(page.status(), [&](v1::ListHistoryResponse* response) {
        service::ToProto(*page, response);
        response->set_unwritten_total(history->unwritten());
        response->set_fault(ToTerminal(history->fault()));
        response->set_row_limit(history->row_limit());
        response->set_byte_limit(history->byte_limit().count());
        const absl::Time evicted_until = history->reach().complete_since;
        if (evicted_until != absl::InfinitePast()) WallToProto(evicted_until, response->mutable_evicted_until());
      });
    });
  }
  void OnCancel() override {
    place_->Finish(Refuse(Reason::kCancelled, "the call was cancelled"), [](v1::ListHistoryResponse*) {});
  }
  void OnDone() override { delete this; }

 private:
  // Through this the history finds the call, until the call is finished.
  class Place {
   public:
    explicit Place(PageCall* call) : call_(call) {}
    template <typename Fill>
    void Finish(const absl::Status& status, Fill fill) ABSL_LOCKS_EXCLUDED(mu_) {
      MutexLock lock(&mu_);
      PageCall* const call = std::exchange(call_, nullptr);
      if (call == nullptr) return;
      if (status.ok()) fill(&call->response_);
      call->grpc::ServerUnaryReactor::Finish(ToGrpc(status));
    }

   private:
    Mutex mu_;
    PageCall* call_ ABSL_GUARDED_BY(mu_);
  };

  v1::ListHistoryResponse& response_;
  // Shared by the history and the call: either may finish first.
  const std::shared_ptr<Place> place_;
};

class HistoryService final : public v1::HistoryService::CallbackService {
 public:
  HistoryService(ServiceContext context, HistoryWriter* history) : context_(context), history_(*history) {}

  grpc::ServerUnaryReactor* ListHistory(grpc::CallbackServerContext* context, const v1::ListHistoryRequest* request,
                                        v1::ListHistoryResponse* response) override {
    const absl::StatusOr<core::Caller> caller = context_.callers->Identify(*context);
    if (!caller.ok()) return FinishRefused(context_, context, kAnyCall, caller, caller.status());
    const absl::Status known =
        context_.broker->Read([&](const core::Core& core) { return core.Authenticate(*caller); });
    if (!known.ok()) return FinishRefused(context_, context, kAnyCall, caller, known);
    absl::StatusOr<HistoryQuery> query = FromProto(*request, *caller);
    if (!query.ok()) return FinishNow(context, query.status());
    auto* const call = new PageCall(response);
    call->Ask(&history_, *std::move(query));
    return call;
  }

 private:
  const ServiceContext context_;
  HistoryWriter& history_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeHistoryService(const ServiceContext& context, HistoryWriter* history) {
  return std::make_unique<HistoryService>(context, history);
}

}  // namespace berth::service
