// The requests for plans (rpc_traits.h).

#ifndef DAEMON_SERVICE_RPC_PLAN_REQUESTS_H_
#define DAEMON_SERVICE_RPC_PLAN_REQUESTS_H_

#include <optional>
#include <string>
#include <utility>

#include <berth/bytes.h>
#include <berth/error.h>
#include <berth/ids.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "berth/v1/plan.pb.h"
#include "common/label.h"
#include "common/status_macros.h"
#include "daemon/core/core.h"
#include "daemon/service/conversion/conversion.h"
#include "daemon/service/conversion/permit_conversion.h"
#include "daemon/service/conversion/placement_conversion.h"
#include "daemon/service/conversion/plan_conversion.h"
#include "daemon/service/rpc/rpc_traits.h"

namespace berth::service {

template <>
struct RpcTraits<core::PlanRequest> : RpcDefaultsFor<core::PlanRequest> {
  static constexpr const char* kAuditName = "make_plan";
  static constexpr auto kMethod = &core::Core::MakePlan;

  static absl::StatusOr<core::PlanRequest> Decode(const v1::MakePlanRequest& request, absl::Time now) {
    for (const std::string& device : request.devices()) BERTH_RETURN_IF_ERROR(ValidateLabel("devices", device));
    if (request.weight_source() < v1::MakePlanRequest::WEIGHT_SOURCE_UNSPECIFIED ||
        request.weight_source() > v1::MakePlanRequest::BANDWIDTH) {
      return Invalid("weight_source", static_cast<int>(request.weight_source()), "0 to 3");
    }
    BERTH_ASSIGN_OR_RETURN(std::optional<std::string> visible, VisibleOf(request));
    const bool scored = request.weight_source() == v1::MakePlanRequest::WEIGHT_SOURCE_UNSPECIFIED;
    core::PlanRequest out = {.units = request.units(),
                             .label = ToLabel(request.label()),
                             .devices = {request.devices().begin(), request.devices().end()},
                             .visible = std::move(visible),
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
  static void Encode(const core::PlanResult& result, v1::PlanChange* out) {
    const core::PlanLayout& layout = *result.layout;
    ToProtoForHolder(layout, out->mutable_plan());
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
  static void AddFacts(const core::PlanRequest& request, AuditFacts* facts) {
    facts->emplace_back("units", absl::StrCat(request.units));
    AddLabel(request.label, facts);
  }

 private:
  static absl::Status Invalid(absl::string_view field, const absl::AlphaNum& value, absl::string_view expected) {
    return Refuse(Reason::kInvalidField, "{field}: {value}; expected {limit}",
                  {{"field", field}, {"value", std::string(value.Piece())}, {"limit", expected}});
  }
  static absl::Status ReadPermits(const v1::MakePlanRequest::Permits& permits, absl::Time now,
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
    BERTH_ASSIGN_OR_RETURN(const absl::Duration wait, FromProto("permits.max_wait", permits.max_wait()));
    out->wait = wait > absl::ZeroDuration();
    out->deadline = now + wait;
    return absl::OkStatus();
  }
};

template <>
struct RpcTraits<core::ReplanRequest> : RpcDefaultsFor<core::ReplanRequest> {
  static constexpr const char* kAuditName = "replan";
  static constexpr auto kMethod = &core::Core::Replan;

  static absl::StatusOr<core::ReplanRequest> Decode(const v1::ReplanRequest& request, absl::Time) {
    return core::ReplanRequest{.plan = PlanId(request.plan()), .reweigh = request.reweigh()};
  }
  static void Encode(const core::PlanResult& result, v1::PlanChange* out) {
    RpcTraits<core::PlanRequest>::Encode(result, out);
  }
  static void AddFacts(const core::ReplanRequest& request, AuditFacts* facts) {
    facts->emplace_back("plan", absl::StrCat(request.plan.value()));
  }
};

// Releases a plan.
template <>
struct RpcTraits<PlanId> : RpcDefaultsFor<PlanId> {
  static constexpr const char* kAuditName = "release_plan";
  static constexpr auto kMethod = &core::Core::ReleasePlan;

  static absl::StatusOr<PlanId> Decode(const v1::ReleasePlanRequest& request, absl::Time) {
    return PlanId(request.plan());
  }
  static void AddFacts(const PlanId& plan, AuditFacts* facts) {
    facts->emplace_back("plan", absl::StrCat(plan.value()));
  }
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_RPC_PLAN_REQUESTS_H_
