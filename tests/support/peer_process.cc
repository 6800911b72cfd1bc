#include "tests/support/peer_process.h"

#include <errno.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/fd_passing.h"
#include "common/os_error.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

// What the process is told: to connect the socket of this number, in the table that both share.
struct Order {
  int fd;
  sockaddr_un address;
};

// Runs in a copy of a process that had threads: nothing here may allocate or lock.
[[noreturn]] void ServeOrders(int talk, uid_t uid) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // Not glibc's: that one tells threads which do not exist here.
  if (uid != 0 &&
      (::syscall(SYS_setresgid, uid, uid, uid) < 0 || ::syscall(SYS_setresuid, uid, uid, uid) < 0)) {
    ::_exit(1);
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  Order order;
  while (::recv(talk, &order, sizeof(order), 0) == sizeof(order)) {
    int error = 0;
    if (::connect(order.fd, reinterpret_cast<const sockaddr*>(&order.address), sizeof(order.address)) < 0) {
      error = errno;
    }
    if (::send(talk, &error, sizeof(error), MSG_NOSIGNAL) < 0) break;
  }
  ::_exit(0);
}

}  // namespace

PeerProcess PeerProcess::Start(uid_t uid) {
  auto [ours, theirs] = Must(SocketPair(), "peer process");
  int pidfd = -1;
  clone_args args = {};
  args.flags = CLONE_PIDFD | CLONE_FILES;
  args.pidfd = reinterpret_cast<uint64_t>(&pidfd);
  args.exit_signal = SIGCHLD;
  const int talk = theirs.get();
  const pid_t pid = static_cast<pid_t>(::syscall(SYS_clone3, &args, sizeof(args)));
  if (pid < 0) Fatal(OsError("clone3", errno), "peer process");
  if (pid == 0) ServeOrders(talk, uid);
  return PeerProcess(pid, UniqueFd(pidfd), std::move(ours), std::move(theirs));
}

UniqueFd PeerProcess::Connect(const std::string& path, int type) {
  UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  Order order = {.fd = socket.get(), .address = {}};
  order.address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(order.address.sun_path)) Fatal(absl::InvalidArgumentError("too long"), path);
  memcpy(order.address.sun_path, path.c_str(), path.size() + 1);
  Must(SendStruct(talk_.get(), order), "peer process");
  const Message answer = Must(ReceiveMessage(talk_.get()), "peer process");
  int error = 0;
  if (answer.bytes.size() != sizeof(error)) Fatal(absl::InternalError("no answer"), "peer process");
  memcpy(&error, answer.bytes.data(), sizeof(error));
  if (error != 0) Fatal(OsError("connect", error), path);
  return socket;
}

void PeerProcess::Kill() {
  if (pid_ == 0) return;
  ::syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0);
  siginfo_t info = {};
  ::waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(pidfd_.get()), &info, WEXITED);
  pid_ = 0;
}

}  // namespace berth::testing
