#include "daemon/supervisor/processes/launcher.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/os/fd_passing.h"
#include "common/os/os_error.h"
#include "common/os/process_capacity.h"
#include "common/patience.h"
#include "common/status_macros.h"
#include "daemon/base/struct_message.h"
#include "daemon/supervisor/processes/child_process.h"
#include "daemon/supervisor/processes/launch_supervisor.h"

namespace berth {
namespace {

// Starting a process takes a few milliseconds, and longer on a machine that swaps.
constexpr int kPatienceMs = 10'000;

// Number of fork tries, and the pause between them. A broker that cannot fork in that time gives way to the next
// broker.
constexpr int kForkTries = 100;
constexpr int kForkPauseMs = 50;

enum class Kind : uint32_t { kStart = 1, kStarted = 2 };

struct StartMessage {
  Kind kind = Kind::kStart;
};
// Carries the socket to the supervisor, or else the reason for the failure.
struct StartedMessage {
  Kind kind = Kind::kStarted;
  char why[252] = {};
};

// Closes all fds except stdin, stdout, stderr and `fd`.
void CloseOthers(int fd) {
  ::syscall(SYS_close_range, 3, fd - 1, 0);
  ::syscall(SYS_close_range, fd + 1, ~0U, 0);
}

[[noreturn]] void Serve(int socket, const std::vector<std::string>& flags) {
  CloseOthers(socket);
  // The signal ends this process sooner than the socket does: a waiter for the broker's end does not find it alive.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // This process does not reap the supervisors it starts.
  ::signal(SIGCHLD, SIG_IGN);
  NameProcess("berth-launcher").IgnoreError();
  while (true) {
    const absl::StatusOr<Message> message = ReceiveMessage(socket);
    // The broker has ended.
    if (!message.ok()) ::_exit(0);
    if (!AsStruct<StartMessage>(*message, Kind::kStart, 0).has_value()) ::_exit(1);
    const absl::StatusOr<UniqueFd> supervisor = LaunchSupervisor(flags);
    StartedMessage answer;
    if (supervisor.ok()) {
      const int fd = supervisor->get();
      SendStruct(socket, answer, {&fd, 1}).IgnoreError();
      continue;
    }
    const absl::string_view why = supervisor.status().message().substr(0, sizeof(answer.why) - 1);
    memcpy(answer.why, why.data(), why.size());
    SendStruct(socket, answer).IgnoreError();
  }
}

}  // namespace

absl::StatusOr<Launcher> Launcher::Fork(std::vector<std::string> supervisor_flags) {
  BERTH_ASSIGN_OR_RETURN(auto sockets, SocketPair());
  pid_t pid = ::fork();
  // A process may be available in a moment.
  for (int i = 0; pid < 0 && errno == EAGAIN && i < kForkTries; ++i) {
    ::poll(nullptr, 0, kForkPauseMs);
    pid = ::fork();
  }
  if (pid < 0) return absl::ResourceExhaustedError(NotStarted("fork", errno).message());
  if (pid == 0) Serve(sockets.second.get(), supervisor_flags);
  return Launcher(pid, std::move(sockets.first));
}

void Launcher::End() {
  socket_.reset();
  // If SIGCHLD is ignored, waitpid() also waits, and then fails.
  if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
  pid_ = 0;
}

absl::StatusOr<UniqueFd> Launcher::StartSupervisor() const {
  BERTH_RETURN_IF_ERROR(SendStruct(socket_.get(), StartMessage{}));
  pollfd entry = {.fd = socket_.get(), .events = POLLIN, .revents = 0};
  if (::poll(&entry, 1, Patient(kPatienceMs)) != 1) {
    return absl::UnavailableError("the supervisor launcher does not answer");
  }
  BERTH_ASSIGN_OR_RETURN(Message message, ReceiveMessage(socket_.get()));
  if (AsStruct<StartedMessage>(message, Kind::kStarted, 1).has_value()) return std::move(message.fds[0]);
  const auto refused = AsStruct<StartedMessage>(message, Kind::kStarted, 0);
  if (!refused.has_value()) return absl::InternalError("the supervisor launcher broke its protocol");
  return absl::UnavailableError(std::string(refused->why, strnlen(refused->why, sizeof(refused->why))));
}

// ---- launch_supervisor.h -------------------------------------------------------------------------------------

absl::StatusOr<UniqueFd> LaunchSupervisor(std::vector<std::string> flags) {
  BERTH_ASSIGN_OR_RETURN(auto sockets, SocketPair());
  flags.push_back("--role=vault");
  flags.push_back(absl::StrCat("--broker-fd=", kChildFd));
  BERTH_ASSIGN_OR_RETURN(ChildProcess process, ChildProcess::Start(flags, sockets.second.get()));
  process.Leave();
  return std::move(sockets.first);
}

}  // namespace berth
