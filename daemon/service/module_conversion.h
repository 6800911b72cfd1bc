// Compiled modules, between the wire and the core.

#ifndef DAEMON_SERVICE_MODULE_CONVERSION_H_
#define DAEMON_SERVICE_MODULE_CONVERSION_H_

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "berth/v1/module.pb.h"
#include "daemon/core/module_types.h"

namespace berth::service {

// ---- In. Errors: INVALID_FIELD naming the field.

absl::StatusOr<core::ObtainModuleRequest> FromProto(const v1::ObtainModuleRequest& request, absl::Time now);
absl::StatusOr<core::StoreModuleRequest> FromProto(const v1::StoreModuleRequest& request);
absl::StatusOr<core::AbandonModuleRequest> FromProto(const v1::AbandonModuleRequest& request);

// ---- Out.

void ToProto(const core::ObtainModuleResult& result, v1::ObtainModuleResponse* out);
void ToProto(const core::StoreModuleResult& result, v1::StoreModuleResponse* out);
void ToProto(const core::AbandonModuleResult& result, v1::AbandonModuleResponse* out);
void ToProto(const core::ModuleView& view, v1::KeptModule* out);
void ToProto(const core::ModuleUsage& usage, v1::ModuleUsage* out);

}  // namespace berth::service

#endif  // DAEMON_SERVICE_MODULE_CONVERSION_H_
