#include "client/cli/signal_relay.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <utility>

#include "common/os_error.h"

namespace berth::cli {
namespace {

constexpr int kRelayed[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT, SIGTSTP};

bool EndsAWait(int signal) {
  return signal == SIGTERM || signal == SIGINT || signal == SIGHUP || signal == SIGQUIT;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SignalRelay>> SignalRelay::Start() {
  sigset_t relayed;
  ::sigemptyset(&relayed);
  for (const int signal : kRelayed) ::sigaddset(&relayed, signal);
  UniqueFd signals(::signalfd(-1, &relayed, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals) return OsError("signalfd", errno);
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return OsError("eventfd", errno);
  // Ignored, as some parents leave it, the command's exit code would be lost.
  ::signal(SIGCHLD, SIG_DFL);
  sigset_t original;
  ::pthread_sigmask(SIG_BLOCK, &relayed, &original);
  return std::unique_ptr<SignalRelay>(new SignalRelay(std::move(signals), std::move(wake), original));
}

SignalRelay::SignalRelay(UniqueFd signals, UniqueFd wake, const sigset_t& original_mask)
    : signals_(std::move(signals)),
      wake_(std::move(wake)),
      original_mask_(original_mask),
      thread_([this] { Run(); }) {}

SignalRelay::~SignalRelay() { Stop(); }

void SignalRelay::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
  thread_.join();
  // What came before now was for the command: it must not end this process, unless there is no command yet.
  signalfd_siginfo info;
  while (::read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    MutexLock lock(&mu_);
    if (child_ == 0 && EndsAWait(signal) && interrupted_by_ == 0) interrupted_by_ = signal;
  }
  ::pthread_sigmask(SIG_SETMASK, &original_mask_, nullptr);
}

void SignalRelay::Run() {
  while (true) {
    pollfd fds[2] = {{.fd = signals_.get(), .events = POLLIN}, {.fd = wake_.get(), .events = POLLIN}};
    ::poll(fds, 2, -1);
    if (fds[1].revents != 0) return;
    signalfd_siginfo info;
    if (::read(signals_.get(), &info, sizeof(info)) != sizeof(info)) continue;
    // Positive codes are the kernel's own: the terminal, here.
    Take(static_cast<int>(info.ssi_signo), info.ssi_code > 0);
  }
}

void SignalRelay::Take(int signal, bool from_terminal) {
  bool cancel = false;
  {
    MutexLock lock(&mu_);
    if (take_ != nullptr) {
      take_(signal);
    } else if (child_ != 0) {
      if (!from_terminal) ::kill(child_, signal);
    } else if (EndsAWait(signal)) {
      cancel = interrupted_by_ == 0;
      if (cancel) interrupted_by_ = signal;
    }
  }
  if (cancel) cancellation_.Cancel();
  // Stops as the command does, so that the shell gets its prompt back.
  if (signal == SIGTSTP) ::kill(::getpid(), SIGSTOP);
}

int SignalRelay::interrupted_by() const {
  MutexLock lock(&mu_);
  return interrupted_by_;
}

void SignalRelay::PassTo(pid_t child) {
  MutexLock lock(&mu_);
  child_ = child;
  if (interrupted_by_ != 0) ::kill(child_, interrupted_by_);
}

void SignalRelay::PassTo(std::function<void(int)> take) {
  MutexLock lock(&mu_);
  take_ = std::move(take);
}

}  // namespace berth::cli
