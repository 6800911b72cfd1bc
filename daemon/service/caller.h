// CallerSource: who makes a call, from its metadata and its connection.

#ifndef DAEMON_SERVICE_CALLER_H_
#define DAEMON_SERVICE_CALLER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "daemon/core/caller.h"
#include "daemon/service/audit_who.h"
#include "daemon/service/connection_table.h"
#include "daemon/service/peer.h"
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

  // What the kernel says of the connection alone. Errors: kUnavailable if it ended.
  absl::StatusOr<std::shared_ptr<const Peer>> FindPeer(const grpc::CallbackServerContext& context) const;
  // Reads who that peer of the call's connection is.
  std::shared_ptr<const AuditWho> ReadPeer(const grpc::CallbackServerContext& context, const Peer& peer) const;

 private:
  const ConnectionTable& connections_;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_CALLER_H_
