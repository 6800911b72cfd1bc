#include "daemon/service/permit_conversion.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "common/error.h"
#include "common/label.h"
#include "common/status_macros.h"
#include "daemon/service/conversion.h"

namespace berth::service {
namespace {

absl::StatusOr<core::DeviceWish> FromProto(const v1::DeviceWish& wish) {
  BERTH_RETURN_IF_ERROR(ValidateLabel("device.uuid", wish.uuid()));
  const auto refuse = [](absl::string_view field, const absl::AlphaNum& value, absl::string_view expected) {
    return Refuse(Reason::kInvalidField, "{field}: \"{value}\"; expected {limit}",
                  {{"field", field}, {"value", std::string(value.Piece())}, {"limit", expected}});
  };
  const bool named = wish.pick() == v1::DeviceWish::NAMED;
  if (wish.pick() < v1::DeviceWish::PICK_UNSPECIFIED || wish.pick() > v1::DeviceWish::NAMED) {
    return refuse("device.pick", static_cast<int>(wish.pick()), "0 to 3");
  }
  if (named == wish.uuid().empty())
    return refuse("device.uuid", wish.uuid(), "a UUID with NAMED, and only then");
  if (wish.pick() == v1::DeviceWish::PICK_UNSPECIFIED &&
      (wish.min_free_bytes() != 0 || wish.declared_bytes() != 0)) {
    return refuse("device.pick", 0, "a pick where bytes are asked");
  }
  return core::DeviceWish{.pick = static_cast<core::DevicePick>(wish.pick()),
                          .uuid = wish.uuid(),
                          .min_free = Bytes(wish.min_free_bytes()),
                          .declared = Bytes(wish.declared_bytes())};
}

// Zero is never.
absl::StatusOr<absl::Duration> HoldFromProto(absl::string_view field,
                                             const google::protobuf::Duration& duration) {
  BERTH_ASSIGN_OR_RETURN(const absl::Duration hold, service::FromProto(field, duration));
  return hold == absl::ZeroDuration() ? absl::InfiniteDuration() : hold;
}

void ToProto(const core::PlacedDevice& device, v1::PlacedDevice* out) {
  out->set_ordinal(device.ordinal);
  out->set_uuid(device.uuid);
  out->set_generation(device.generation);
}

std::string NameOf(const core::DeviceWish& wish) {
  switch (wish.pick) {
    case core::DevicePick::kNone:
      return "";
    case core::DevicePick::kAny:
      return "any";
    case core::DevicePick::kBest:
      return "best";
    case core::DevicePick::kNamed:
      return wish.uuid;
  }
  return "";
}

// The core's enums carry the wire's numbers.
static_assert(static_cast<int>(core::DevicePick::kNamed) == v1::DeviceWish::NAMED);
static_assert(static_cast<int>(core::WaitCause::kDevice) == v1::WaitExplanation::DEVICE);

}  // namespace

std::string PoolName(const std::string& name) { return name.empty() ? "gpu-tests" : name; }

absl::StatusOr<core::AcquireRequest> FromProto(const v1::AcquirePermitRequest& request, absl::Time now) {
  BERTH_RETURN_IF_ERROR(ValidateLabel("pool", request.pool()));
  BERTH_RETURN_IF_ERROR(ValidateLabel("holder_key", request.holder_key()));
  BERTH_RETURN_IF_ERROR(ValidateLabel("label", request.label()));
  if (request.holder_key().empty()) {
    return Refuse(Reason::kInvalidField, "{field}: \"{value}\" names no holder; expected {limit}",
                  {{"field", "holder_key"}, {"value", ""}, {"limit", "1 to 128 bytes"}});
  }
  core::AcquireRequest out = {.pool = PoolName(request.pool()),
                              .units = request.units() == 0 ? 1 : request.units(),
                              .holder_key = request.holder_key(),
                              .label = request.label(),
                              .client_cap = request.client_cap(),
                              .adoptable = request.adoptable(),
                              .independent = request.independent(),
                              .priority = request.priority(),
                              .exclusive = request.exclusive()};
  if (out.priority < core::kLeastPriority || out.priority > core::kMostPriority) {
    return Refuse(
        Reason::kInvalidField, "{field}: {value} is no priority; expected {limit}",
        {{"field", "priority"},
         {"value", out.priority},
         {"limit", absl::StrCat("a number from ", core::kLeastPriority, " to ", core::kMostPriority)}});
  }
  BERTH_ASSIGN_OR_RETURN(out.device, FromProto(request.device()));
  if (request.has_max_wait()) {
    BERTH_ASSIGN_OR_RETURN(const absl::Duration wait, FromProto("max_wait", request.max_wait()));
    out.wait = wait > absl::ZeroDuration();
    out.deadline = now + wait;
  }
  return out;
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
  return change;
}

void ToProto(const core::AcquireResult& result, v1::AcquirePermitResponse* out) {
  out->set_acquisition(result.acquisition.value());
  out->set_permit(result.permit.value());
  out->set_nested(result.nested);
  out->set_epoch(result.epoch);
  if (!result.device.has_value()) return;
  ToProto(*result.device, out->mutable_device());
  if (result.device->kind == core::MemoryKind::kHost) return;
  (*out->mutable_environment())["CUDA_VISIBLE_DEVICES"] = result.device->uuid;
  (*out->mutable_environment())["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID";
}

void ToProto(const core::ReleaseResult& result, v1::ReleasePermitResponse* out) {
  out->set_returned(result.returned);
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
  if (view.device.has_value()) ToProto(*view.device, out->mutable_device());
  out->set_declared_bytes(view.declared.count());
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
}

void ToProto(const core::WaitView& view, v1::WaitExplanation* out) {
  ToProto(view.waiter, out->mutable_waiter());
  ToProto(view.pool, out->mutable_pool());
  out->set_cause(static_cast<v1::WaitExplanation::Cause>(view.cause));
  for (const core::PermitView& holder : view.holders) ToProto(holder, out->add_holders());
  out->set_tenant_out(view.tenant_out);
  out->set_units_ahead(view.units_ahead);
  out->set_passes(view.passes);
  if (view.estimate != absl::InfiniteDuration()) ToProto(view.estimate, out->mutable_estimate());
}

}  // namespace berth::service
