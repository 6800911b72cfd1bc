// Converts a gRPC status to the absl::Status that callers see, and back. A refusal of the daemon retains its reason,
// named values and retry advice (berth/error.h). A transport failure has none of them, which distinguishes the two.

#ifndef CLIENT_SDK_TRANSPORT_STATUS_CONVERSION_H_
#define CLIENT_SDK_TRANSPORT_STATUS_CONVERSION_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace grpc {
class Status;
}  // namespace grpc

namespace berth {

// Preserves code and text. google.rpc.ErrorInfo of domain "berth" and RetryInfo become error details. Unreadable
// details and unknown reasons are dropped: the result is then a status of unknown origin.
absl::Status FromGrpc(const grpc::Status& status);

// As FromGrpc(), from a serialized google.rpc.Status that is not OK. kInternal if the bytes are no such message.
absl::Status FromStatusProto(absl::string_view bytes);

// The reverse conversion, with the details encoded as the daemon encodes them.
grpc::Status ToGrpc(const absl::Status& status);

}  // namespace berth

#endif  // CLIENT_SDK_TRANSPORT_STATUS_CONVERSION_H_
