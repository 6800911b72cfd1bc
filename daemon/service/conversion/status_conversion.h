// The only conversion of Berth's refusals to gRPC statuses, with google.rpc.ErrorInfo and RetryInfo as details.

#ifndef DAEMON_SERVICE_CONVERSION_STATUS_CONVERSION_H_
#define DAEMON_SERVICE_CONVERSION_STATUS_CONVERSION_H_

#include "absl/status/status.h"

namespace grpc {
class Status;
}  // namespace grpc

namespace berth::service {

grpc::Status ToGrpc(const absl::Status& status);

}  // namespace berth::service

#endif  // DAEMON_SERVICE_CONVERSION_STATUS_CONVERSION_H_
