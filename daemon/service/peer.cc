#include "daemon/service/peer.h"

#include "common/error.h"
#include "common/process.h"
#include "common/status_macros.h"

namespace berth::service {

absl::StatusOr<Peer> IdentifyPeer(int socket, bool admin) {
  BERTH_ASSIGN_OR_RETURN(const PeerCredentials credentials, GetPeerCredentials(socket));
  if (credentials.uid == kOverflowUid) {
    return Refuse(Reason::kUnknownPeer, "uid {uid} (pid {pid}) is the overflow uid and identifies nobody",
                  {{"uid", credentials.uid}, {"pid", credentials.pid}});
  }
  return Peer{.tenant = {.uid = credentials.uid, .container = ContainerOf(credentials.pid)},
              .process = {.pid = credentials.pid,
                          .uid = credentials.uid,
                          .gid = credentials.gid,
                          .name = ProcessName(credentials.pid)},
              .admin = admin};
}

}  // namespace berth::service
