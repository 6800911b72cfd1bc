#include "daemon/service/conversion/plan_conversion.h"

#include "berth/v1/plan.pb.h"
#include "berth/v1/resources.pb.h"
#include "daemon/service/conversion/conversion.h"

namespace berth::service {
namespace {

// The core's enums have the wire's numbers.
static_assert(static_cast<int>(core::WeightSource::kBandwidth) == v1::MakePlanRequest::BANDWIDTH);
static_assert(static_cast<int>(core::PlanStale::kPermitRevoked) == v1::Plan::PERMIT_REVOKED);
static_assert(static_cast<int>(core::PlanDevice::Left::kConstraint) == v1::PlanDevice::CONSTRAINT);

// Converts what the holder of a plan needs for its work.
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
  if (device.capacity != UINT64_MAX) out->set_room_units(device.capacity);
  out->set_left(static_cast<v1::PlanDevice::Left>(device.left));
}

// Converts what the holder of a plan needs for its work, except the devices.
void ToProtoWithoutDevices(const core::PlanLayout& layout, v1::Plan* out) {
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
  ToProtoWithoutDevices(layout, out);
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

void ToProtoForHolder(const core::PlanLayout& layout, v1::Plan* out) {
  ToProtoWithoutDevices(layout, out);
  for (const core::PlanDevice& device : layout.devices) ToProtoForHolder(device, out->add_devices());
}

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
