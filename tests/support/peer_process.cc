#include "tests/support/peer_process.h"

#include <errno.h>
#include <fcntl.h>
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

#include "absl/strings/str_cat.h"
#include "common/os/fd_passing.h"
#include "common/os/os_error.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

// Command to the process: connect the socket of this number in the shared fd table.
struct Command {
  int fd;
  sockaddr_un address;
};

// Everything that the process needs, prepared before it starts.
struct Plan {
  int talk = -1;
  uid_t uid = 0;
  bool user_namespace = false;
  uid_t subordinate_uid = 0;
  // Creates the PID namespace in the user namespace.
  bool pid_namespace = false;
};

// Everything below runs in a copy of a process that had threads: nothing may allocate or lock.

[[noreturn]] void ServeCommands(int talk) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  Command command;
  while (::recv(talk, &command, sizeof(command), 0) == sizeof(command)) {
    int error = 0;
    if (::connect(command.fd, reinterpret_cast<const sockaddr*>(&command.address), sizeof(command.address)) < 0) {
      error = errno;
    }
    if (::send(talk, &error, sizeof(error), MSG_NOSIGNAL) < 0) break;
  }
  ::_exit(0);
}

// Not glibc's call, which signals threads that do not exist here.
bool Become(uid_t uid, gid_t gid) {
  return ::syscall(SYS_setresgid, gid, gid, gid) == 0 && ::syscall(SYS_setresuid, uid, uid, uid) == 0;
}

// Reports progress and waits for the command to continue.
void Report(int talk, int error) {
  char go_on;
  if (::send(talk, &error, sizeof(error), MSG_NOSIGNAL) < 0 || error != 0 || ::recv(talk, &go_on, 1, 0) != 1) {
    ::_exit(1);
  }
}

[[noreturn]] void BecomePeer(const Plan& plan) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (plan.uid != 0 && (::syscall(SYS_setgroups, 1, &kClientsGroup) < 0 || !Become(plan.uid, plan.uid))) {
    Report(plan.talk, errno);
  }
  if (plan.user_namespace && ::unshare(CLONE_NEWUSER) < 0) Report(plan.talk, errno);
  Report(plan.talk, 0);
  // Root is 0 in the namespace's map, and the other uid 1.
  if (plan.subordinate_uid != 0 && !Become(1, 0)) Report(plan.talk, errno);
  if (!plan.pid_namespace) {
    Report(plan.talk, 0);
    ServeCommands(plan.talk);
  }
  clone_args args = {};
  args.flags = CLONE_NEWPID | CLONE_FILES;
  args.exit_signal = SIGCHLD;
  const auto inner = ::syscall(SYS_clone3, &args, sizeof(args));
  if (inner < 0) Report(plan.talk, errno);
  if (inner == 0) {
    Report(plan.talk, 0);
    ServeCommands(plan.talk);
  }
  ::syscall(SYS_wait4, inner, nullptr, 0, nullptr);
  ::_exit(0);
}

absl::Status WriteTo(const std::string& path, const std::string& text) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  return file && ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size())
             ? absl::OkStatus()
             : OsError(path, errno);
}

// Writes the maps that newuidmap would write for a user with that subordinate uid.
absl::Status WriteMaps(pid_t pid, const PeerOptions& options) {
  std::string uids = absl::StrCat("0 ", options.uid, " 1\n");
  if (options.subordinate_uid != 0) absl::StrAppend(&uids, "1 ", options.subordinate_uid, " 1\n");
  const std::string proc = absl::StrCat("/proc/", pid);
  absl::Status status = WriteTo(absl::StrCat(proc, "/uid_map"), uids);
  if (status.ok()) status = WriteTo(absl::StrCat(proc, "/setgroups"), "deny");
  if (status.ok()) status = WriteTo(absl::StrCat(proc, "/gid_map"), absl::StrCat("0 ", options.uid, " 1\n"));
  return status;
}

// Waits for a Report() and returns its result.
absl::Status AwaitReport(int talk) {
  const absl::StatusOr<Message> report = ReceiveMessage(talk);
  if (!report.ok()) return report.status();
  int error = EPROTO;
  if (report->bytes.size() == sizeof(error)) memcpy(&error, report->bytes.data(), sizeof(error));
  return error == 0 ? absl::OkStatus() : OsError("the peer process's namespaces", error);
}

}  // namespace

PeerProcess PeerProcess::Start(const PeerOptions& options) { return Must(TryStart(options), "peer process"); }

absl::StatusOr<PeerProcess> PeerProcess::TryStart(const PeerOptions& asked) {
  PeerOptions options = asked;
  if (options.uid == 0 && !options.of_operator) options.uid = OtherUser().value_or(0);
  auto [ours, theirs] = Must(SocketPair(), "peer process");
  int pidfd = -1;
  clone_args args = {};
  args.flags = CLONE_PIDFD | CLONE_FILES;
  const bool by_root = options.pid_namespace && !options.user_namespace;
  if (by_root) args.flags |= CLONE_NEWPID;
  args.pidfd = reinterpret_cast<uint64_t>(&pidfd);
  args.exit_signal = SIGCHLD;
  const Plan plan = {.talk = theirs.get(),
                     .uid = options.uid,
                     .user_namespace = options.user_namespace,
                     .subordinate_uid = options.subordinate_uid,
                     .pid_namespace = options.pid_namespace && !by_root};
  const pid_t pid = static_cast<pid_t>(::syscall(SYS_clone3, &args, sizeof(args)));
  if (pid < 0) Fatal(OsError("clone3", errno), "peer process");
  if (pid == 0) BecomePeer(plan);
  PeerProcess process(pid, UniqueFd(pidfd), std::move(ours), std::move(theirs));
  const int talk = process.talk_.get();
  absl::Status status = AwaitReport(talk);
  if (status.ok() && options.user_namespace) status = WriteMaps(pid, options);
  if (status.ok() && !options.cgroup.empty()) {
    status = WriteTo(options.cgroup + "/cgroup.procs", absl::StrCat(pid));
  }
  if (status.ok()) status = SendStruct(talk, 'g');
  if (status.ok()) status = AwaitReport(talk);
  if (status.ok()) status = SendStruct(talk, 'g');
  if (!status.ok()) return status;
  return process;
}

UniqueFd PeerProcess::Connect(const std::string& path, int type) {
  UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  Command command = {.fd = socket.get(), .address = {}};
  command.address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(command.address.sun_path)) Fatal(absl::InvalidArgumentError("too long"), path);
  memcpy(command.address.sun_path, path.c_str(), path.size() + 1);
  Must(SendStruct(talk_.get(), command), "peer process");
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
