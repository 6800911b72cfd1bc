// Plans, from the core to the wire.

#ifndef DAEMON_SERVICE_CONVERSION_PLAN_CONVERSION_H_
#define DAEMON_SERVICE_CONVERSION_PLAN_CONVERSION_H_

#include "berth/v1/plan.pb.h"
#include "daemon/core/types/plan_types.h"

namespace berth::service {

// Converts what the holder of the plan needs for its work.
void ToProtoForHolder(const core::PlanLayout& layout, v1::Plan* out);
void ToProto(const core::PlanView& view, v1::Plan* out);

}  // namespace berth::service

#endif  // DAEMON_SERVICE_CONVERSION_PLAN_CONVERSION_H_
