#include "daemon/service/plan_conversion.h"

#include "absl/strings/str_cat.h"
#include "common/error.h"
#include "common/label.h"
#include "common/status_macros.h"
#include "daemon/core/permit_types.h"
#include "daemon/service/conversion.h"
#include "daemon/service/permit_conversion.h"

namespace berth::service {
namespace {

// The core's enums carry the wire's numbers.
static_assert(static_cast<int>(core::WeightSource::kBandwidth) == v1::MakePlanRequest::BANDWIDTH);
static_assert(static_cast<int>(core::PlanStale::kPermitRevoked) == v1::Plan::PERMIT_REVOKED);
static_assert(static_cast<int>(core::PlanDevice::Left::kConstraint) == v1::PlanDevice::CONSTRAINT);

absl::Status Invalid(absl::string_view field, const absl::AlphaNum& value, absl::string_view expected) {
  return Refuse(Reason::kInvalidField, "{field}: {value}; expected {limit}",
                {{"field", field}, {"value", std::string(value.Piece())}, {"limit", expected}});
}

absl::Status ReadPermits(const v1::MakePlanRequest::Permits& permits, absl::Time now,
                         core::PlanRequest* out) {
  BERTH_RETURN_IF_ERROR(ValidateLabel("permits.pool", permits.pool()));
  if (permits.priority() < core::kLeastPriority || permits.priority() > core::kMostPriority) {
    return Invalid("permits.priority", permits.priority(),
                   absl::StrCat("a number from ", core::kLeastPriority, " to ", core::kMostPriority));
  }
  out->pool = PoolName(permits.pool());
  out->permit_units = permits.has_units() ? permits.units() : 1;
  out->client_cap = permits.client_cap();
  out->independent = permits.independent();
  out->priority = permits.priority();
  if (!permits.has_max_wait()) return absl::OkStatus();
  BERTH_ASSIGN_OR_RETURN(const absl::Duration wait,
                         service::FromProto("permits.max_wait", permits.max_wait()));
  out->wait = wait > absl::ZeroDuration();
  out->deadline = now + wait;
  return absl::OkStatus();
}

// What the holder of a plan works by.
void ToProtoForHolder(const core::PlanDevice& device, v1::PlanDevice* out) {
  out->set_ordinal(device.ordinal);
  out->set_uuid(*device.uuid);
  out->set_generation(device.generation);
  out->set_units(device.units);
  out->set_permit(device.permit.value());
  out->set_holder_key(device.holder_key);
  out->set_kind(static_cast<v1::MemoryKind>(device.kind));
}

void ToProto(const core::PlanDevice& device, v1::PlanDevice* out) {
  ToProtoForHolder(device, out);
  out->set_sm_count(device.sm_count);
  out->set_cc_major(device.cc_major);
  out->set_free_bytes(device.free.count());
  out->set_weight(device.weight);
  out->set_ideal_units(device.ideal);
  if (device.room != UINT64_MAX) out->set_room_units(device.room);
  out->set_left(static_cast<v1::PlanDevice::Left>(device.left));
}

// All but the devices.
void ToProtoForHolder(const core::PlanLayout& layout, v1::Plan* out) {
  out->set_id(layout.id.value());
  out->set_revision(layout.revision);
  out->set_units(layout.asked.units);
  out->mutable_tiles()->Reserve(static_cast<int>(layout.tiles.size()));
  for (const Tile& tile : layout.tiles) {
    v1::Plan::Tile* const to = out->add_tiles();
    to->set_device(tile.device);
    to->set_begin(tile.begin);
    to->set_end(tile.end);
  }
  out->mutable_devices()->Reserve(static_cast<int>(layout.devices.size()));
  out->set_reservation(layout.reservation.value());
  out->set_pool(layout.asked.pool);
  if (!layout.asked.pool.empty()) out->set_permit_units(layout.asked.permit_units);
}

void ToProto(const core::PlanLayout& layout, v1::Plan* out) {
  ToProtoForHolder(layout, out);
  for (const core::PlanDevice& device : layout.devices) ToProto(device, out->add_devices());
  out->set_session(layout.session.value());
  service::ToProto(layout.tenant, out->mutable_tenant());
  out->set_label(layout.asked.label);
  service::ToProto(layout.since, out->mutable_create_time());
  service::ToProto(layout.made, out->mutable_plan_time());
  out->set_weight_source(static_cast<v1::MakePlanRequest::WeightSource>(layout.asked.source));
  out->set_score_version(layout.score_version);
  out->set_bytes_per_unit(layout.asked.bytes_per_unit.count());
  out->set_min_units(layout.asked.min_units);
  out->set_max_devices(layout.asked.max_devices);
  out->set_one_island(layout.asked.one_island);
}

}  // namespace

absl::StatusOr<core::PlanRequest> FromProto(const v1::MakePlanRequest& request, absl::Time now) {
  BERTH_RETURN_IF_ERROR(ValidateLabel("label", request.label()));
  for (const std::string& device : request.devices()) BERTH_RETURN_IF_ERROR(ValidateLabel("devices", device));
  if (request.weight_source() < v1::MakePlanRequest::WEIGHT_SOURCE_UNSPECIFIED ||
      request.weight_source() > v1::MakePlanRequest::BANDWIDTH) {
    return Invalid("weight_source", static_cast<int>(request.weight_source()), "0 to 3");
  }
  const bool scored = request.weight_source() == v1::MakePlanRequest::WEIGHT_SOURCE_UNSPECIFIED;
  core::PlanRequest out = {.units = request.units(),
                           .label = request.label(),
                           .devices = {request.devices().begin(), request.devices().end()},
                           .source = scored ? core::WeightSource::kScore
                                            : static_cast<core::WeightSource>(request.weight_source()),
                           .weights = {request.weights().begin(), request.weights().end()},
                           .bytes_per_unit = Bytes(request.bytes_per_unit()),
                           .min_units = request.min_units(),
                           .max_devices = request.max_devices(),
                           .one_island = request.one_island(),
                           .reserve = request.reserve()};
  if (request.has_permits()) BERTH_RETURN_IF_ERROR(ReadPermits(request.permits(), now, &out));
  return out;
}

void ToProto(const core::PlanResult& result, v1::PlanChange* out) {
  const core::PlanLayout& layout = *result.layout;
  ToProtoForHolder(layout, out->mutable_plan());
  for (const core::PlanDevice& device : layout.devices) ToProtoForHolder(device, out->mutable_plan()->add_devices());
  out->set_from_revision(result.from_revision);
  for (const core::PlanMove& move : result.moves) {
    v1::PlanMove* const to = out->add_moves();
    to->set_from_uuid(*layout.devices[move.from].uuid);
    to->set_from_generation(move.from_generation);
    to->set_to_uuid(*layout.devices[move.to].uuid);
    to->set_begin(move.begin);
    to->set_end(move.end);
  }
}

void ToProto(const core::ReleasePlanResult&, v1::ReleasePlanResponse*) {}

void ToProto(const core::PlanView& view, v1::Plan* out) {
  ToProto(*view.layout, out);
  out->set_stale(static_cast<v1::Plan::Stale>(view.stale));
  if (view.stale == core::PlanStale::kCurrent) return;
  for (const core::PlanDevice& device : view.layout->devices) {
    if (device.ordinal == view.stale_device) out->set_stale_uuid(*device.uuid);
  }
  if (view.stale != core::PlanStale::kCurrent) service::ToProto(view.stale_since, out->mutable_stale_time());
}

}  // namespace berth::service
