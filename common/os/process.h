// Reads another process's kernel data: credentials at connect time, pidfd, namespaces.

#ifndef COMMON_OS_PROCESS_H_
#define COMMON_OS_PROCESS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"

namespace berth {

// The uid that the kernel reports for an unmapped user; it identifies no user.
inline constexpr uint32_t kOverflowUid = 65534;

// The peer of a connected Unix socket, as SO_PEERCRED reports it.
struct PeerCredentials {
  // Pid in the caller's PID namespace; 0 if it is not visible there.
  int32_t pid = 0;
  uint32_t uid = 0;
  uint32_t gid = 0;
};

absl::StatusOr<PeerCredentials> GetPeerCredentials(int socket);

// Returns a pidfd of the process that connected `socket`: the kernel's own (SO_PEERPIDFD, from 6.5). Before 6.5, calls
// pidfd_open on the pid while the socket is connected; a peer that passes its socket on and exits can forge that. A
// pidfd becomes readable when its process ends.
// Errors: kFailedPrecondition if neither method works (a pid that is not visible here, on an old kernel); kNotFound if
// the process has ended. After any error, do not trust data read by the peer's pid: another process may have it.
absl::StatusOr<UniqueFd> OpenPeerPidfd(int socket, const PeerCredentials& peer);

// Returns the pid behind `pidfd` in this PID namespace; 0 if it is not visible here, -1 once the process has ended.
int32_t PidOfPidfd(int pidfd);

// Returns whether the process behind `pidfd` has ended.
bool IsGone(int pidfd);

// Returns the program's short name; empty if it cannot be read.
std::string ProcessName(int32_t pid);

}  // namespace berth

#endif  // COMMON_OS_PROCESS_H_
