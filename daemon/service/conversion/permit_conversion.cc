#include "daemon/service/conversion/permit_conversion.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <berth/bytes.h>
#include <berth/error.h>
#include <berth/ids.h>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "berth/v1/admin.pb.h"
#include "berth/v1/permit.pb.h"
#include "berth/v1/placement.pb.h"
#include "berth/v1/plan.pb.h"
#include "berth/v1/resources.pb.h"
#include "common/label.h"
#include "common/status_macros.h"
#include "daemon/base/halted_processes.h"
#include "daemon/broker/node_clock.h"
#include "daemon/service/conversion/conversion.h"
#include "daemon/service/conversion/placement_conversion.h"
#include "daemon/service/conversion/plan_conversion.h"

namespace berth::service {
namespace {

// Zero means never.
absl::StatusOr<absl::Duration> HoldFromProto(absl::string_view field,
                                             const google::protobuf::Duration& duration) {
  BERTH_ASSIGN_OR_RETURN(const absl::Duration hold, service::FromProto(field, duration));
  return hold == absl::ZeroDuration() ? absl::InfiniteDuration() : hold;
}

void HoldToProto(absl::Duration hold, google::protobuf::Duration* out) {
  service::ToProto(hold == absl::InfiniteDuration() ? absl::ZeroDuration() : hold, out);
}

// The most processes whose state one answer reads, at some 10 us each.
constexpr size_t kMostLooks = 256;

// The core's enums have the wire's numbers.
static_assert(static_cast<int>(core::WaitCause::kStopped) == v1::WaitExplanation::STOPPED);

// The core's enum has the wire's numbers.
static_assert(static_cast<int>(core::DevicePick::kRoundRobin) == v1::DeviceWish::ROUND_ROBIN);

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

std::string PoolName(const std::string& name) { return name.empty() ? "gpu-tests" : name; }

absl::Status CheckHolder(const std::string& holder_key, int32_t priority) {
  BERTH_RETURN_IF_ERROR(ValidateLabel("holder_key", holder_key));
  if (holder_key.empty()) {
    return Refuse(Reason::kInvalidField, "invalid {field} \"{value}\": expected {limit}",
                  {{"field", "holder_key"}, {"value", ""}, {"limit", "1 to 128 bytes"}});
  }
  if (priority >= core::kLeastPriority && priority <= core::kMostPriority) return absl::OkStatus();
  return Refuse(Reason::kInvalidField, "invalid {field} {value}: expected {limit}",
                {{"field", "priority"},
                 {"value", priority},
                 {"limit", absl::StrCat("a number from ", core::kLeastPriority, " to ", core::kMostPriority)}});
}

absl::StatusOr<core::PoolChange> FromProto(const v1::SetPoolRequest& request) {
  BERTH_RETURN_IF_ERROR(ValidateLabel("pool", request.pool()));
  core::PoolChange change;
  if (request.has_cap()) change.cap = request.cap();
  if (request.has_tenant_cap()) change.tenant_cap = request.tenant_cap();
  if (request.has_ageing()) {
    BERTH_ASSIGN_OR_RETURN(change.ageing, FromProto("ageing", request.ageing()));
  }
  if (request.has_hold_warning()) {
    BERTH_ASSIGN_OR_RETURN(change.hold_warning, HoldFromProto("hold_warning", request.hold_warning()));
  }
  if (request.has_hold_limit()) {
    BERTH_ASSIGN_OR_RETURN(change.hold_limit, HoldFromProto("hold_limit", request.hold_limit()));
  }
  for (const v1::TenantWeight& weight : request.weights()) change.weights[weight.uid()] = weight.weight();
  if (request.has_idle_warning()) {
    BERTH_ASSIGN_OR_RETURN(change.idle_warning, HoldFromProto("idle_warning", request.idle_warning()));
  }
  change.defaults = request.defaults();
  if (request.has_no_device_cap()) change.no_device_cap = request.no_device_cap();
  if (request.has_device_cap()) change.device_cap = request.device_cap();
  for (const v1::DeviceCap& cap : request.device_caps()) {
    BERTH_RETURN_IF_ERROR(ValidateLabel("device_caps.uuid", cap.uuid()));
    std::optional<uint64_t>& to = change.device_caps[cap.uuid()];
    if (cap.has_cap()) to = cap.cap();
  }
  return change;
}

void ToProto(const core::PlacedDevice& device, v1::PlacedDevice* out) {
  out->set_ordinal(device.ordinal);
  out->set_uuid(device.uuid);
  out->set_generation(device.generation);
}

void SetEnvironment(const std::vector<std::string>& uuids, google::protobuf::Map<std::string, std::string>* out) {
  if (uuids.empty()) return;
  (*out)["CUDA_VISIBLE_DEVICES"] = absl::StrJoin(uuids, ",");
  (*out)["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID";
}

void ToProto(const core::PoolChange& change, v1::SetPoolRequest* out) {
  if (change.cap.has_value()) out->set_cap(*change.cap);
  if (change.tenant_cap.has_value()) out->set_tenant_cap(*change.tenant_cap);
  if (change.ageing.has_value()) ToProto(*change.ageing, out->mutable_ageing());
  if (change.hold_warning.has_value()) HoldToProto(*change.hold_warning, out->mutable_hold_warning());
  if (change.hold_limit.has_value()) HoldToProto(*change.hold_limit, out->mutable_hold_limit());
  if (change.idle_warning.has_value()) HoldToProto(*change.idle_warning, out->mutable_idle_warning());
  for (const auto& [uid, weight] : change.weights) {
    v1::TenantWeight* const to = out->add_weights();
    to->set_uid(uid);
    to->set_weight(weight);
  }
  if (change.no_device_cap.has_value()) out->set_no_device_cap(*change.no_device_cap);
  if (change.device_cap.has_value()) out->set_device_cap(*change.device_cap);
  for (const auto& [uuid, cap] : change.device_caps) {
    v1::DeviceCap* const to = out->add_device_caps();
    to->set_uuid(uuid);
    if (cap.has_value()) to->set_cap(*cap);
  }
}

void ToProto(const core::PoolView& view, v1::Pool* out) {
  out->set_name(view.config.name);
  out->set_cap(view.config.cap);
  out->set_out(view.out);
  out->set_holders(view.holders);
  out->set_waiters(view.waiters);
  out->set_peak(view.peak);
  out->set_granted_total(view.granted_total);
  out->set_refused_total(view.refused_total);
  ToProto(view.config.ageing, out->mutable_ageing());
  out->set_tenant_cap(view.config.tenant_cap);
  for (const auto& [uid, weight] : view.config.weights) {
    v1::TenantWeight* const to = out->add_weights();
    to->set_uid(uid);
    to->set_weight(weight);
  }
  if (view.config.hold_warning != absl::InfiniteDuration()) {
    ToProto(view.config.hold_warning, out->mutable_hold_warning());
  }
  if (view.config.hold_limit != absl::InfiniteDuration()) {
    ToProto(view.config.hold_limit, out->mutable_hold_limit());
  }
  out->set_overdue(view.overdue);
  out->set_revoked_total(view.revoked_total);
  out->set_exclusive(view.exclusive);
  if (view.mean_hold > absl::ZeroDuration()) ToProto(view.mean_hold, out->mutable_mean_hold());
  if (view.config.idle_warning != absl::InfiniteDuration()) {
    ToProto(view.config.idle_warning, out->mutable_idle_warning());
  }
  out->set_no_device_cap(view.config.no_device_cap);
  out->set_out_without_device(view.out_without_device);
  out->set_device_cap(view.config.device_cap);
  for (const auto& [uuid, cap] : view.config.device_caps) {
    v1::DeviceCap* const to = out->add_device_caps();
    to->set_uuid(uuid);
    to->set_cap(cap);
  }
  out->set_kept(view.cached);
  out->set_stopped_waiters(view.stopped);
}

void ToProto(const core::PoolUse& use, v1::PoolUse* out) {
  out->set_pool(use.pool);
  out->set_cap(use.cap);
  out->set_out(use.all.units);
  out->set_holders(use.all.holders);
  out->set_waiters(use.all.waiters);
  out->set_visible_out(use.visible.units);
  out->set_visible_holders(use.visible.holders);
  out->set_visible_waiters(use.visible.waiters);
}

void ToProto(const core::PermitView& view, v1::Permit* out) {
  out->set_id(view.id.value());
  out->set_pool(view.pool);
  out->set_units(view.units);
  out->set_depth(view.depth);
  out->set_session(view.session.value());
  out->set_holder_key(view.holder_key);
  out->set_label(view.label);
  out->set_adoptable(view.adoptable);
  ToProto(view.granted_at, out->mutable_grant_time());
  ToProto(view.waited, out->mutable_waited());
  ToProto(view.process, out->mutable_process());
  out->set_priority(view.priority);
  out->set_exclusive(view.exclusive);
  out->set_overdue(view.overdue);
  out->set_kept(view.cached);
  if (view.device.has_value()) ToProto(*view.device, out->mutable_device());
  out->set_declared_bytes(view.declared.count());
  out->set_gang(view.gang);
  if (view.idle > absl::ZeroDuration()) ToProto(view.idle, out->mutable_idle());
  if (view.utilisation.has_value()) out->set_utilisation(*view.utilisation);
}

void MarkStopped(google::protobuf::RepeatedPtrField<v1::Permit>* permits) {
  absl::flat_hash_map<int32_t, bool> looked;
  HaltedProcesses halted;
  for (v1::Permit& permit : *permits) {
    const auto [at, fresh] = looked.try_emplace(permit.process().pid(), false);
    if (fresh && looked.size() > kMostLooks) return;
    if (fresh) at->second = halted.Has(at->first);
    permit.set_stopped(at->second);
  }
}

void ToProto(const core::WaiterView& view, v1::Waiter* out) {
  out->set_pool(view.pool);
  out->set_units(view.units);
  out->set_position(view.position);
  out->set_session(view.session.value());
  out->set_holder_key(view.holder_key);
  out->set_label(view.label);
  ToProto(view.since, out->mutable_wait_start_time());
  ToProto(view.process, out->mutable_process());
  out->set_priority(view.priority);
  out->set_exclusive(view.exclusive);
  out->set_number(view.number);
  out->set_device(NameOf(view.device));
  out->set_declared_bytes(view.device.declared.count());
  out->set_min_free_bytes(view.device.min_free.count());
  out->set_gang(view.gang);
  out->set_stopped(view.stopped);
}

void ToProto(const core::WaitView& view, v1::WaitExplanation* out) {
  ToProto(view.waiter, out->mutable_waiter());
  ToProto(view.pool, out->mutable_pool());
  out->set_cause(static_cast<v1::WaitExplanation::Cause>(view.cause));
  for (const core::PermitView& holder : view.holders) ToProto(holder, out->add_holders());
  MarkStopped(out->mutable_holders());
  out->set_tenant_out(view.tenant_out);
  out->set_units_ahead(view.units_ahead);
  out->set_passes(view.passes);
  out->set_lacking(view.lacking);
  const bool applies = NodeClock::Real().Now() < view.estimate_until;
  if (applies && view.estimate != absl::InfiniteDuration()) ToProto(view.estimate, out->mutable_estimate());
}

void ToProto(const core::StrayView& view, v1::Stray* out) {
  out->set_device(view.device);
  out->set_device_uuid(view.uuid);
  out->mutable_process()->set_pid(view.process.pid);
  out->mutable_process()->set_uid(view.process.uid);
  out->mutable_process()->set_name(view.process.name);
  out->set_bytes(view.process.bytes.count());
  out->set_session(view.session.value());
  ToProto(view.since, out->mutable_first_seen_time());
}

// ---- placement_conversion.h ----------------------------------------------------------------------------------

absl::StatusOr<core::DeviceConstraint> FromProto(absl::string_view field, const v1::DeviceWish& constraint) {
  const std::string uuid = absl::StrCat(field, ".uuid"), pick = absl::StrCat(field, ".pick");
  BERTH_RETURN_IF_ERROR(ValidateLabel(uuid, constraint.uuid()));
  BERTH_RETURN_IF_ERROR(ValidateLabel(absl::StrCat(field, ".island_of"), constraint.island_of()));
  const auto refuse = [](absl::string_view what, const absl::AlphaNum& value, absl::string_view expected) {
    return Refuse(Reason::kInvalidField, "{field}: \"{value}\"; expected {limit}",
                  {{"field", what}, {"value", std::string(value.Piece())}, {"limit", expected}});
  };
  const bool named = constraint.pick() == v1::DeviceWish::NAMED;
  if (constraint.pick() < v1::DeviceWish::PICK_UNSPECIFIED || constraint.pick() > v1::DeviceWish::ROUND_ROBIN) {
    return refuse(pick, static_cast<int>(constraint.pick()), "0 to 5");
  }
  if (named == constraint.uuid().empty()) return refuse(uuid, constraint.uuid(), "a UUID with NAMED, and only then");
  if (constraint.among_size() > static_cast<int>(kMaxDeviceOrdinals)) {
    return refuse(absl::StrCat(field, ".among"), constraint.among_size(), absl::StrCat(kMaxDeviceOrdinals, " at most"));
  }
  for (const std::string& name : constraint.among()) {
    BERTH_RETURN_IF_ERROR(ValidateLabel(absl::StrCat(field, ".among"), name));
  }
  BERTH_ASSIGN_OR_RETURN(std::optional<std::string> visible, VisibleOf(constraint));
  const bool asks = constraint.min_free_bytes() != 0 || constraint.declared_bytes() != 0 ||
                    constraint.min_capability() != 0 || !constraint.island_of().empty() ||
                    constraint.among_size() > 0 || constraint.wait_for_device();
  if (constraint.pick() == v1::DeviceWish::PICK_UNSPECIFIED && asks) {
    return refuse(pick, 0, "a pick if the request has a device constraint");
  }
  return core::DeviceConstraint{.pick = static_cast<core::DevicePick>(constraint.pick()),
                                .uuid = constraint.uuid(),
                                .min_free = Bytes(constraint.min_free_bytes()),
                                .declared = Bytes(constraint.declared_bytes()),
                                .min_capability = constraint.min_capability(),
                                .island_of = constraint.island_of(),
                                .among = {constraint.among().begin(), constraint.among().end()},
                                .visible = std::move(visible),
                                .wait_for_device = constraint.wait_for_device()};
}

std::string NameOf(const core::DeviceConstraint& constraint) {
  switch (constraint.pick) {
    case core::DevicePick::kNone:
      return "";
    case core::DevicePick::kAny:
      return "any";
    case core::DevicePick::kBest:
      return "best";
    case core::DevicePick::kHighestScore:
      return "highest-score";
    case core::DevicePick::kRoundRobin:
      return "round-robin";
    case core::DevicePick::kNamed:
      break;
  }
  return constraint.uuid;
}

// ---- plan_conversion.h ---------------------------------------------------------------------------------------

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
