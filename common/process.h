// What the kernel says of another process: its credentials at connect time, its pidfd, its namespaces.

#ifndef COMMON_PROCESS_H_
#define COMMON_PROCESS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/unique_fd.h"

namespace berth {

// The uid that an unmapped user reads as; it names nobody.
inline constexpr uint32_t kOverflowUid = 65534;

// The peer of a connected Unix socket, as SO_PEERCRED has it.
struct PeerCredentials {
  // In the caller's PID namespace; 0 if it is not visible there.
  int32_t pid = 0;
  uint32_t uid = 0;
  uint32_t gid = 0;
};

absl::StatusOr<PeerCredentials> GetPeerCredentials(int socket);

// A pidfd of the process that connected `socket`: the kernel's own (SO_PEERPIDFD, from 6.5) or, before that, pidfd_open
// of the pid checked against a reuse of the number. A pidfd turns readable when its process is gone.
// Errors: kFailedPrecondition where neither can be had (a pid that is not visible here, on an old kernel); kNotFound if
// the process is gone already.
absl::StatusOr<UniqueFd> OpenPeerPidfd(int socket, const PeerCredentials& peer);

// The pid that `pidfd` means, as this PID namespace sees it; 0 if it does not, -1 once it is gone.
int32_t PidOfPidfd(int pidfd);

// Whether the process that `pidfd` means is gone.
bool IsGone(int pidfd);

// The program's short name; empty if it cannot be read.
std::string ProcessName(int32_t pid);

// The cgroup path (of the unified hierarchy) of `pid` if its PID namespace is not this process's; empty if it is the
// same. A pid of 0 is elsewhere by definition and reads as "unknown".
std::string ContainerOf(int32_t pid);

}  // namespace berth

#endif  // COMMON_PROCESS_H_
