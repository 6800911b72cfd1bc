// CallerSource: identifies the caller of an RPC, from its metadata and its connection.

#ifndef DAEMON_SERVICE_RPC_CALLER_H_
#define DAEMON_SERVICE_RPC_CALLER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "daemon/core/types/caller.h"
#include "daemon/service/audit/audit_who.h"
#include "daemon/service/transport/connection_table.h"
#include "daemon/service/transport/peer.h"

namespace grpc {
class CallbackServerContext;
}  // namespace grpc

namespace berth::service {

// Thread-safe.
class CallerSource {
 public:
  // `connections` must outlive the source.
  explicit CallerSource(const ConnectionTable* connections) : connections_(*connections) {}

  // Returns what the caller claims and what the kernel reports of its connection. The core, not this method, checks the
  // claims. Errors: BAD_CREDENTIALS if the metadata is missing or malformed; kUnavailable if the connection ended.
  absl::StatusOr<core::Caller> Identify(const grpc::CallbackServerContext& context) const;

  // Returns the kernel's data of the connection alone. Errors: kUnavailable if the connection ended.
  absl::StatusOr<std::shared_ptr<const Peer>> FindPeer(const grpc::CallbackServerContext& context) const;
  // Reads the identity of `peer`, the peer of the call's connection.
  std::shared_ptr<const AuditWho> ReadPeer(const grpc::CallbackServerContext& context, const Peer& peer) const;

 private:
  const ConnectionTable& connections_;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_RPC_CALLER_H_
