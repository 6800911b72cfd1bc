// CallerSource: who makes a call, from its metadata and its connection.

#ifndef DAEMON_SERVICE_CALLER_H_
#define DAEMON_SERVICE_CALLER_H_

#include "absl/status/statusor.h"
#include "daemon/core/caller.h"
#include "daemon/service/connection_table.h"
#include "grpcpp/server_context.h"

namespace berth::service {

// Thread-safe.
class CallerSource {
 public:
  // `connections` must outlive the source.
  explicit CallerSource(const ConnectionTable* connections) : connections_(*connections) {}

  // What the caller says of itself and what the kernel says of its connection; not yet checked against each other (the
  // core does). Errors: BAD_CREDENTIALS where the metadata is missing or malformed; kUnavailable if the connection
  // ended.
  absl::StatusOr<core::Caller> Identify(const grpc::CallbackServerContext& context) const;

 private:
  const ConnectionTable& connections_;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_CALLER_H_
