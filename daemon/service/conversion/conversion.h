// Conversion between the wire and the core: one function in, which validates, and one out. It contains no policy. This
// file has the shared conversions, and those of sessions.

#ifndef DAEMON_SERVICE_CONVERSION_CONVERSION_H_
#define DAEMON_SERVICE_CONVERSION_CONVERSION_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/session_types.h"

namespace google::protobuf {
class Duration;
class Timestamp;
}  // namespace google::protobuf

namespace berth::v1 {
class Process;
class RequestTag;
class Session;
class StopNodeResponse;
class Tenant;
}  // namespace berth::v1

namespace berth::service {

// ---- In. Errors: INVALID_FIELD naming the field.

absl::StatusOr<absl::Duration> FromProto(absl::string_view field, const google::protobuf::Duration& duration);
core::RequestTag FromProto(const v1::RequestTag& tag);

// ---- Out.

void ToProto(absl::Duration duration, google::protobuf::Duration* out);
// Converts a time of the broker's clock to wall time as of now; WallToProto() takes a time that is wall time already.
void ToProto(absl::Time time, google::protobuf::Timestamp* out);
void WallToProto(absl::Time wall, google::protobuf::Timestamp* out);
void ToProto(const core::Tenant& tenant, v1::Tenant* out);
void ToProto(const core::ProcessInfo& process, v1::Process* out);
void ToProto(const core::SessionView& view, v1::Session* out);
void ToProto(const core::DrainResult& result, v1::StopNodeResponse* out);

}  // namespace berth::service

#endif  // DAEMON_SERVICE_CONVERSION_CONVERSION_H_
