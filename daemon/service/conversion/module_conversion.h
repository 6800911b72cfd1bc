// Compiled modules, between the wire and the core.

#ifndef DAEMON_SERVICE_CONVERSION_MODULE_CONVERSION_H_
#define DAEMON_SERVICE_CONVERSION_MODULE_CONVERSION_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "berth/v1/module.pb.h"
#include "common/digest.h"
#include "daemon/core/types/module_types.h"

namespace berth::service {

// ---- In.

// Errors: INVALID_FIELD naming `field`.
absl::StatusOr<Digest> ReadDigest(absl::string_view field, const std::string& bytes);

// ---- Out.

void ToProto(const core::ModuleView& view, v1::KeptModule* out);
void ToProto(const core::ModuleUsage& usage, v1::ModuleUsage* out);

}  // namespace berth::service

#endif  // DAEMON_SERVICE_CONVERSION_MODULE_CONVERSION_H_
