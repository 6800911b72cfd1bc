// The fds that clients may not take, by their connections, their processes, their blocks or their modules: what the
// broker needs to hear its vault and its workers, whatever clients do, and what operators need to be heard. An fd that
// cannot be received from vault or workers is a lease or a device lost.

#ifndef DAEMON_VAULT_FD_RESERVE_H_
#define DAEMON_VAULT_FD_RESERVE_H_

#include <sys/resource.h>

#include <algorithm>

#include "absl/status/status.h"
#include "common/error.h"

namespace berth {

// Who takes an fd of the broker's.
enum class FdOwner { kClient, kOperator, kDaemon };

// Operators of one user's who are served whatever clients have; and what their sessions of one process each take: a
// lifeline, a channel and a pidfd.
inline constexpr int kReservedOperators = 64;
inline constexpr int kOperatorSessionFds = 3 * kReservedOperators;

// Half for those operators: beside the session a connection, which is two, and one to spare.
inline constexpr int kReservedFds = 2 * (kOperatorSessionFds + 3 * kReservedOperators);

// Fd numbers that this process can have.
inline int FdNumbers() {
  rlimit limit = {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 1 << 20));
}

// The number at which clients' fds end. Numbers are given out from the lowest, so one that reaches it says that as many
// are in use.
inline int ClientFdLimit() {
  const int numbers = FdNumbers();
  return std::max(numbers - kReservedFds, numbers / 2);
}

// The number at which operators' fds end: half of the reserve is theirs.
inline int OperatorFdLimit() { return (ClientFdLimit() + FdNumbers()) / 2; }

// Where the fds of that owner end.
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

// Whether that owner may have an fd of this number. Errors: LIMIT.
inline absl::Status CheckFd(int fd, FdOwner owner) {
  if (fd < FdLimitOf(owner)) return absl::OkStatus();
  return Refuse(Reason::kLimit, "{what}: {current} in use, limit {limit}",
                {{"what", "the daemon's file descriptors"}, {"current", fd}, {"limit", FdLimitOf(owner)}});
}

}  // namespace berth

#endif  // DAEMON_VAULT_FD_RESERVE_H_
