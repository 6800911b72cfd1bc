// Turns a gRPC status into the absl::Status that callers see, and back. A refusal of the daemon keeps its
// reason, figures and retry advice (common/error.h); a failure of the transport has none, which tells the two
// apart.

#ifndef CLIENT_STATUS_CONVERSION_H_
#define CLIENT_STATUS_CONVERSION_H_

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace berth {

// Keeps code and text; google.rpc.ErrorInfo of domain "berth" and RetryInfo become error details. Details
// that cannot be read, or whose reason is not known here, are left out: what remains is a status of unknown
// origin.
absl::Status FromGrpc(const grpc::Status& status);

// The other way, with the details encoded as the daemon encodes them.
grpc::Status ToGrpc(const absl::Status& status);

}  // namespace berth

#endif  // CLIENT_STATUS_CONVERSION_H_
