// Peer: what the kernel says of the process behind a connection.

#ifndef DAEMON_SERVICE_PEER_H_
#define DAEMON_SERVICE_PEER_H_

#include <string>

#include "absl/status/statusor.h"
#include "daemon/core/caller.h"
#include "daemon/vault/fd_reserve.h"

namespace berth::service {

struct Peer {
  core::Tenant tenant;
  core::ProcessInfo process;
  // By the socket that the connection came in on: berthd.sock, observer.sock, admin.sock.
  enum class Role { kTenant, kObserver, kAdmin };
  Role role = Role::kTenant;
};

// Whose fds those are that somebody takes who came in as that.
inline FdOwner OwnerOf(Peer::Role role) {
  return role == Peer::Role::kAdmin ? FdOwner::kOperator : FdOwner::kClient;
}

// The address of a listening socket, which those have that it accepted; empty where there is none.
std::string ListenerAddress(int socket);

// Reads the peer of a connected socket. Errors: UNKNOWN_PEER for the overflow uid, which names nobody.
absl::StatusOr<Peer> IdentifyPeer(int socket, Peer::Role role);

}  // namespace berth::service

#endif  // DAEMON_SERVICE_PEER_H_
