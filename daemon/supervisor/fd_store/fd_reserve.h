// Fds that clients cannot use up with their connections, processes, blocks or modules. The broker needs this reserve to
// receive from its supervisor and its workers whatever clients do, and to serve operators. An fd that the broker cannot
// receive from supervisor or workers costs a lease or a device.

#ifndef DAEMON_SUPERVISOR_FD_STORE_FD_RESERVE_H_
#define DAEMON_SUPERVISOR_FD_STORE_FD_RESERVE_H_

#include <sys/resource.h>

#include <algorithm>

#include <berth/error.h>

#include "absl/status/status.h"

namespace berth {

// Party on whose behalf the broker takes an fd.
enum class FdOwner { kClient, kOperator, kDaemon };

// Number of operators of one user that the broker serves whatever clients hold. The second constant is the number of
// fds of their sessions with one process each: a lifeline, a channel and a pidfd.
inline constexpr int kReservedOperators = 64;
inline constexpr int kOperatorSessionFds = 3 * kReservedOperators;

// Half of the reserve is for those operators: per operator the session's fds, a connection, which takes two, and one
// spare.
inline constexpr int kReservedFds = 2 * (kOperatorSessionFds + 3 * kReservedOperators);

// Returns the number of fds that this process can have.
inline int FdNumbers() {
  rlimit limit = {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 1 << 20));
}

// Returns the fd number at which clients' fds end. The kernel assigns the lowest free number, so an fd that reaches the
// limit shows that as many are in use.
inline int ClientFdLimit() {
  const int numbers = FdNumbers();
  return std::max(numbers - kReservedFds, numbers / 2);
}

// Returns the fd number at which operators' fds end: half of the reserve is theirs.
inline int OperatorFdLimit() { return (ClientFdLimit() + FdNumbers()) / 2; }

// Returns the fd number at which that owner's fds end.
inline int FdLimitOf(FdOwner owner) {
  switch (owner) {
    case FdOwner::kClient:
      return ClientFdLimit();
    case FdOwner::kOperator:
      return OperatorFdLimit();
    case FdOwner::kDaemon:
      break;
  }
  return FdNumbers();
}

// Checks whether that owner may have an fd with this number. Errors: LIMIT.
inline absl::Status CheckFd(int fd, FdOwner owner) {
  if (fd < FdLimitOf(owner)) return absl::OkStatus();
  return Refuse(Reason::kLimit, "{what}: {current} in use, limit {limit}",
                {{"what", "the daemon's file descriptors"}, {"current", fd}, {"limit", FdLimitOf(owner)}});
}

}  // namespace berth

#endif  // DAEMON_SUPERVISOR_FD_STORE_FD_RESERVE_H_
