// Plans, between the wire and the core.

#ifndef DAEMON_SERVICE_PLAN_CONVERSION_H_
#define DAEMON_SERVICE_PLAN_CONVERSION_H_

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "berth/v1/plan.pb.h"
#include "daemon/core/plan_types.h"

namespace berth::service {

// ---- In. Errors: INVALID_FIELD naming the field.

absl::StatusOr<core::PlanRequest> FromProto(const v1::MakePlanRequest& request, absl::Time now);

// ---- Out.

void ToProto(const core::PlanResult& result, v1::PlanChange* out);
void ToProto(const core::ReleasePlanResult& result, v1::ReleasePlanResponse* out);
void ToProto(const core::PlanView& view, v1::Plan* out);

}  // namespace berth::service

#endif  // DAEMON_SERVICE_PLAN_CONVERSION_H_
