// Permits and pools, between the wire and the core.

#ifndef DAEMON_SERVICE_PERMIT_CONVERSION_H_
#define DAEMON_SERVICE_PERMIT_CONVERSION_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "berth/v1/admin.pb.h"
#include "berth/v1/permit.pb.h"
#include "berth/v1/resources.pb.h"
#include "daemon/core/device_types.h"
#include "daemon/core/gang_types.h"
#include "daemon/core/permit_types.h"

namespace berth::service {

// ---- In. Errors: INVALID_FIELD naming the field.

// An empty name is "gpu-tests".
std::string PoolName(const std::string& name);
// `now` turns a wait into a time.
absl::StatusOr<core::AcquireRequest> FromProto(const v1::AcquirePermitRequest& request, absl::Time now);
absl::StatusOr<core::GangRequest> FromProto(const v1::AcquireGangRequest& request, absl::Time now);
absl::StatusOr<core::PoolChange> FromProto(const v1::SetPoolRequest& request);

// ---- Out.

void ToProto(const core::AcquireResult& result, v1::AcquirePermitResponse* out);
void ToProto(const core::GangResult& result, v1::AcquireGangResponse* out);
void ToProto(const core::ReleaseResult& result, v1::ReleasePermitResponse* out);
void ToProto(const core::KeepPermitsResult& result, v1::KeepPermitsResponse* out);
void ToProto(const core::PoolView& view, v1::Pool* out);
void ToProto(const core::PermitView& view, v1::Permit* out);
void ToProto(const core::WaiterView& view, v1::Waiter* out);
void ToProto(const core::WaitView& view, v1::WaitExplanation* out);
void ToProto(const core::StrayView& view, v1::Stray* out);

}  // namespace berth::service

#endif  // DAEMON_SERVICE_PERMIT_CONVERSION_H_
