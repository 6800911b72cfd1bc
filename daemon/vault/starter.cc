#include "daemon/vault/starter.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/fd_passing.h"
#include "common/os_error.h"
#include "common/status_macros.h"
#include "common/struct_message.h"
#include "daemon/vault/child_process.h"
#include "daemon/vault/successor.h"

namespace berth {
namespace {

// A process is started in a few milliseconds; on a machine that swaps it may take longer.
constexpr int kPatienceMs = 10'000;

// How often, and how long between, a process is asked for that there is none of; so that who cannot start one in this
// time gives way to another.
constexpr int kForkTries = 100;
constexpr int kForkPauseMs = 50;

enum class Kind : uint32_t { kStart = 1, kStarted = 2 };

struct StartMessage {
  Kind kind = Kind::kStart;
};
// With the socket to the vault; without one, why not.
struct StartedMessage {
  Kind kind = Kind::kStarted;
  char why[252] = {};
};

// Leaves this process stdin, stdout, stderr and `kept`.
void CloseOthers(int kept) {
  ::syscall(SYS_close_range, 3, kept - 1, 0);
  ::syscall(SYS_close_range, kept + 1, ~0U, 0);
}

[[noreturn]] void Serve(int socket, const std::vector<std::string>& flags) {
  CloseOthers(socket);
  // Sooner than by the socket, so that whoever waits for the broker's end does not find this one.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // Nobody here reaps what is started.
  ::signal(SIGCHLD, SIG_IGN);
  NameProcess("berth-starter").IgnoreError();
  while (true) {
    const absl::StatusOr<Message> message = ReceiveMessage(socket);
    // The broker is gone.
    if (!message.ok()) ::_exit(0);
    if (!AsStruct<StartMessage>(*message, Kind::kStart, 0).has_value()) ::_exit(1);
    const absl::StatusOr<UniqueFd> vault = StartSuccessor(flags);
    StartedMessage answer;
    if (vault.ok()) {
      const int fd = vault->get();
      SendStruct(socket, answer, {&fd, 1}).IgnoreError();
      continue;
    }
    const absl::string_view why = vault.status().message().substr(0, sizeof(answer.why) - 1);
    memcpy(answer.why, why.data(), why.size());
    SendStruct(socket, answer).IgnoreError();
  }
}

}  // namespace

absl::StatusOr<Starter> Starter::Fork(std::vector<std::string> vault_flags) {
  BERTH_ASSIGN_OR_RETURN(auto sockets, SocketPair());
  pid_t pid = ::fork();
  // There may be one more process in a moment.
  for (int i = 0; pid < 0 && errno == EAGAIN && i < kForkTries; ++i) {
    ::poll(nullptr, 0, kForkPauseMs);
    pid = ::fork();
  }
  if (pid < 0) return absl::ResourceExhaustedError(OsError("fork", errno).message());
  if (pid == 0) Serve(sockets.second.get(), vault_flags);
  return Starter(pid, std::move(sockets.first));
}

void Starter::End() {
  socket_.reset();
  // Where SIGCHLD is ignored this waits, too, and fails then.
  if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
  pid_ = 0;
}

absl::StatusOr<UniqueFd> Starter::StartVault() const {
  BERTH_RETURN_IF_ERROR(SendStruct(socket_.get(), StartMessage{}));
  pollfd entry = {.fd = socket_.get(), .events = POLLIN, .revents = 0};
  if (::poll(&entry, 1, kPatienceMs) != 1) return absl::UnavailableError("the starter of vaults does not answer");
  BERTH_ASSIGN_OR_RETURN(Message message, ReceiveMessage(socket_.get()));
  if (AsStruct<StartedMessage>(message, Kind::kStarted, 1).has_value()) return std::move(message.fds[0]);
  const auto refused = AsStruct<StartedMessage>(message, Kind::kStarted, 0);
  if (!refused.has_value()) return absl::InternalError("the starter of vaults broke its protocol");
  return absl::UnavailableError(std::string(refused->why, strnlen(refused->why, sizeof(refused->why))));
}

}  // namespace berth
