// Peer: what the kernel says of the process behind a connection.

#ifndef DAEMON_SERVICE_PEER_H_
#define DAEMON_SERVICE_PEER_H_

#include "absl/status/statusor.h"
#include "daemon/core/caller.h"

namespace berth::service {

struct Peer {
  core::Tenant tenant;
  core::ProcessInfo process;
  // The connection came in on admin.sock.
  bool admin = false;
};

// Reads the peer of a connected socket. Errors: UNKNOWN_PEER for the overflow uid, which names nobody.
absl::StatusOr<Peer> IdentifyPeer(int socket, bool admin);

}  // namespace berth::service

#endif  // DAEMON_SERVICE_PEER_H_
