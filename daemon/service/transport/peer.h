// Peer: the kernel's data about the process behind a connection.

#ifndef DAEMON_SERVICE_TRANSPORT_PEER_H_
#define DAEMON_SERVICE_TRANSPORT_PEER_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/types/caller.h"
#include "daemon/service/limits/accept_gate.h"
#include "daemon/supervisor/fd_store/fd_reserve.h"

namespace berth::service {

struct Peer {
  core::Tenant tenant;
  core::ProcessInfo process;
  // Determined by the socket that the connection came in on: berthd.sock, observer.sock, admin.sock.
  enum class Role { kTenant, kObserver, kAdmin };
  Role role = Role::kTenant;
};

// Returns the user whose limits the peer's use counts to.
inline uint32_t UserOf(const Peer& peer) { return core::UserOf(peer.tenant); }

// Returns the owner category of fds that a peer of this role takes.
inline FdOwner OwnerOf(Peer::Role role) {
  return role == Peer::Role::kAdmin ? FdOwner::kOperator : FdOwner::kClient;
}

// Returns the address of a listening socket, which its accepted sockets share; empty if there is none.
std::string ListenerAddress(int socket);

// Identifies the peer of a connected socket.
// Errors: UNKNOWN_PEER for the overflow uid, which identifies no user; for a process without an obtainable pidfd; for a
// process whose container cannot be distinguished from another, or whose user is not visible.
absl::StatusOr<Peer> IdentifyPeer(int socket, Peer::Role role);

// Counts a new connection at the gate and identifies its peer, whose role is set; operators' connections do not count.
// `now` is the event loop's time. On an error `peer` has what is known of it. Errors: LIMIT, by the gate; as
// IdentifyPeer().
absl::Status AdmitPeer(AcceptGate* gate, absl::Time now, int socket, Peer* peer);

}  // namespace berth::service

#endif  // DAEMON_SERVICE_TRANSPORT_PEER_H_
