#include "daemon/service/conversion/device_conversion.h"

#include "berth/v1/inventory.pb.h"
#include "berth/v1/resources.pb.h"
#include "common/device_metrics.h"
#include "daemon/service/conversion/conversion.h"

namespace berth::service {
namespace {

// The core's enums have the wire's numbers.
static_assert(static_cast<int>(core::MemoryKind::kCudaDirect) == v1::MEMORY_KIND_CUDA_DIRECT);
static_assert(static_cast<int>(core::DeviceState::kIdle) == v1::Device::IDLE);
static_assert(static_cast<int>(core::DeviceState::kProbation) == v1::Device::PROBATION);
static_assert(static_cast<int>(DeviceEventKind::kUncorrectedEcc) == v1::DeviceEvent::UNCORRECTED_ECC);

}  // namespace

void ToProto(const core::ByteCounts& bytes, v1::ByteCounts* out) {
  out->set_live(bytes.live.count());
  out->set_retired(bytes.retired.count());
  out->set_quarantined(bytes.quarantined.count());
  out->set_warm(bytes.warm.count());
  out->set_reserved(bytes.reserved.count());
  out->set_outstanding(bytes.outstanding().count());
  out->set_daemon(bytes.daemon.count());
}

void ToProto(const core::DeviceView& view, v1::Device* out) {
  out->set_ordinal(view.ordinal);
  out->set_uuid(view.uuid);
  out->set_name(view.name);
  out->set_kind(static_cast<v1::MemoryKind>(view.kind));
  out->set_state(static_cast<v1::Device::State>(view.state));
  out->set_generation(view.generation);
  out->set_total_bytes(view.total.count());
  out->set_budget_bytes(view.budget.count());
  out->set_granularity(view.granularity.count());
  ToProto(view.bytes, out->mutable_bytes());
  out->set_failed_releases(view.failed_releases);
  out->set_restarts_left(view.restarts_left);
  out->set_last_failure(view.last_failure);
  out->set_drain_reason(view.drain_reason);
  out->set_context_bytes(view.context_cost.count());
  out->set_lost_blocks(view.lost_blocks);
  out->set_clears_check(static_cast<v1::Device::ClearsCheck>(view.scrub.outcome));
  out->set_clears_check_detail(view.scrub.detail);
  if (view.reading.has_value()) {
    v1::Device::Reading* const reading = out->mutable_reading();
    service::ToProto(view.reading->taken, reading->mutable_read_time());
    reading->set_free_bytes(view.reading->free.count());
    reading->set_others_bytes(view.reading->others.count());
    if (view.reading->utilisation.has_value()) reading->set_utilisation(*view.reading->utilisation);
  }
  if (!view.context.has_value()) return;
  v1::Device::ContextWorker* const context = out->mutable_context_worker();
  context->set_state(static_cast<v1::Device::State>(view.context->state));
  context->set_generation(view.context->generation);
  context->set_restarts_left(view.context->restarts_left);
  context->set_last_failure(view.context->last_failure);
}

void ToProto(const std::vector<DeviceCondition::Event>& events,
             google::protobuf::RepeatedPtrField<v1::DeviceEvent>* out) {
  for (const DeviceCondition::Event& event : events) {
    v1::DeviceEvent* const to = out->Add();
    to->set_kind(static_cast<v1::DeviceEvent::Kind>(event.kind));
    to->set_code(event.code);
    to->set_count(event.count);
    service::ToProto(event.heard_at, to->mutable_time());
  }
}

}  // namespace berth::service
