// Peer: what the kernel says of the process behind a connection.

#ifndef DAEMON_SERVICE_PEER_H_
#define DAEMON_SERVICE_PEER_H_

#include "absl/status/statusor.h"
#include "daemon/core/caller.h"

namespace berth::service {

struct Peer {
  core::Tenant tenant;
  core::ProcessInfo process;
  // By the socket that the connection came in on: berthd.sock, observer.sock, admin.sock.
  enum class Role { kTenant, kObserver, kAdmin };
  Role role = Role::kTenant;
};

// Reads the peer of a connected socket. Errors: UNKNOWN_PEER for the overflow uid, which names nobody.
absl::StatusOr<Peer> IdentifyPeer(int socket, Peer::Role role);

}  // namespace berth::service

#endif  // DAEMON_SERVICE_PEER_H_
