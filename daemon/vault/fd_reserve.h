// The fds that clients may not take, by their connections, their processes or their blocks: what the broker needs to
// hear its vault and its workers, whatever clients do, and what operators need to be heard. An fd that cannot be
// received from vault or workers is a lease or a device lost.

#ifndef DAEMON_VAULT_FD_RESERVE_H_
#define DAEMON_VAULT_FD_RESERVE_H_

#include <sys/resource.h>

#include <algorithm>

namespace berth {

// Who takes an fd of the broker's.
enum class FdOwner { kClient, kOperator, kDaemon };

// Half for 64 operators with a connection and a session each: five, and one to spare.
inline constexpr int kReservedFds = 768;

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

}  // namespace berth

#endif  // DAEMON_VAULT_FD_RESERVE_H_
