#include "client/cli/run/signal_relay.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "common/os/os_error.h"

namespace berth::cli {
namespace {

enum class Action { kEnd, kStop, kIgnore };

Action DefaultAction(int signal) {
  switch (signal) {
    case SIGTSTP:
    case SIGTTIN:
    case SIGTTOU:
      return Action::kStop;
    case SIGCHLD:
    case SIGCONT:
    case SIGURG:
    case SIGWINCH:
      return Action::kIgnore;
    default:
      return Action::kEnd;
  }
}

bool IsStop(const signalfd_siginfo& info) {
  return DefaultAction(static_cast<int>(info.ssi_signo)) == Action::kStop;
}

// Queued signals are delivered one by one; of every other signal at most one is pending.
bool IsQueued(int signal) { return signal >= SIGRTMIN; }

sigset_t AllSignals() {
  sigset_t all;
  ::sigfillset(&all);
  return all;
}

// The signals that a waiting process reads. A signal that was blocked at the start stays pending, for the command.
sigset_t Unblocked(const SignalSettings& settings) {
  sigset_t set = AllSignals();
  for (int signal = 1; signal < NSIG; ++signal) {
    if (::sigismember(&settings.blocked, signal) == 1) ::sigdelset(&set, signal);
  }
  return set;
}

}  // namespace

// Facts that the new process determines before it becomes the command.
struct SignalRelay::Launch {
  GroupWitness* witness = nullptr;
  // `seen`: signals that have reached the group since the wait ended. `pending`: those that the new process received
  // itself.
  SignalCounts seen = {};
  sigset_t pending;
};

absl::StatusOr<std::unique_ptr<SignalRelay>> SignalRelay::Start() {
  const SignalSettings original = ReadSignalSettings();
  const sigset_t taken = Unblocked(original);
  UniqueFd signals(::signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals) return OsError("signalfd", errno);
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return OsError("eventfd", errno);
  // With SIGCHLD ignored, as some parents leave it, the command's exit code would be lost. SA_NOCLDSTOP: a stopped
  // child sends no SIGCHLD, which could merge with a SIGCHLD from another process.
  struct sigaction of_children = {};
  of_children.sa_handler = SIG_DFL;
  of_children.sa_flags = SA_NOCLDSTOP;
  ::sigaction(SIGCHLD, &of_children, nullptr);
  const sigset_t all = AllSignals();
  ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
  std::unique_ptr<SignalRelay> relay(new SignalRelay(std::move(signals), std::move(wake), original));
  absl::StatusOr<Thread> thread = Thread::Start("signals", [raw = relay.get()] { raw->Run(); });
  if (!thread.ok()) {
    SetSignalSettings(original);
    return thread.status();
  }
  relay->thread_ = *std::move(thread);
  return relay;
}

SignalRelay::SignalRelay(UniqueFd signals, UniqueFd wake, const SignalSettings& original)
    : signals_(std::move(signals)), wake_(std::move(wake)), original_(original) {}

SignalRelay::~SignalRelay() { Stop(); }

void SignalRelay::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
  thread_.join();
  {
    // Earlier signals were meant for the command: they must not end this process, unless there is no command yet.
    MutexLock lock(&mu_);
    witness_.reset();
    for (const signalfd_siginfo& info : Read()) {
      if (child_ == 0) Take(info, /*to_group=*/false);
    }
  }
  SetSignalSettings(original_);
}

void SignalRelay::Run() {
  while (true) {
    pollfd fds[2] = {{.fd = signals_.get(), .events = POLLIN}, {.fd = wake_.get(), .events = POLLIN}};
    ::poll(fds, 2, -1);
    if (fds[1].revents != 0) return;
    MutexLock lock(&mu_);
    TakeAll();
  }
}

std::vector<signalfd_siginfo> SignalRelay::Read() {
  std::vector<signalfd_siginfo> all;
  signalfd_siginfo info;
  while (::read(signals_.get(), &info, sizeof(info)) == sizeof(info)) all.push_back(info);
  return all;
}

void SignalRelay::RecordGroup(const SignalCounts& counts) {
  for (size_t signal = 1; signal < counts.size(); ++signal) {
    if (counts[signal] == 0) continue;
    of_group_[signal] = IsQueued(static_cast<int>(signal)) ? of_group_[signal] + counts[signal] : 1;
  }
}

bool SignalRelay::TakeOfGroup(const signalfd_siginfo& info) {
  uint32_t& count = of_group_[info.ssi_signo];
  if (count == 0) return false;
  --count;
  return true;
}

void SignalRelay::TakeAll() {
  const std::vector<signalfd_siginfo> first = Read();
  if (first.empty()) return;
  const auto is = [](int signal) {
    return [signal](const signalfd_siginfo& info) { return static_cast<int>(info.ssi_signo) == signal; };
  };
  if (witness_ == nullptr) {
    for (auto info = first.begin(); info != first.end(); ++info) {
      // A SIGCONT that arrived after a stop signal has undone it.
      if (IsStop(*info) && std::any_of(info + 1, first.end(), is(SIGCONT))) continue;
      // Positive codes are from the kernel itself, usually for the terminal.
      Take(*info, info->ssi_code > 0);
    }
    return;
  }
  // A stopped witness could not answer.
  if (std::any_of(first.begin(), first.end(), is(SIGCONT))) witness_->Continue();
  RecordGroup(witness_->Take());
  std::vector<std::pair<signalfd_siginfo, bool>> sorted;
  for (const signalfd_siginfo& info : first) sorted.emplace_back(info, TakeOfGroup(info));
  // An equal signal that came meanwhile may be part of the group signal in the witness's count. Two signals so close to
  // each other may count as one.
  bool stopped = false;
  for (const signalfd_siginfo& info : Read()) {
    stopped = stopped || IsStop(info);
    const int signal = static_cast<int>(info.ssi_signo);
    const bool merged = !IsQueued(signal) && std::any_of(sorted.begin(), sorted.end(), [&](const auto& each) {
      return each.second && is(signal)(each.first);
    });
    if (merged) continue;
    RecordGroup(witness_->Take());
    sorted.emplace_back(info, TakeOfGroup(info));
  }
  const bool undone = stopped && std::any_of(first.begin(), first.end(), is(SIGCONT));
  for (const auto& [info, to_group] : sorted) {
    // A later stop has cancelled the SIGCONT, also for the witness; the SIGCONT would now undo the stop.
    if (undone && is(SIGCONT)(info)) continue;
    Take(info, to_group);
  }
}

void SignalRelay::Take(const signalfd_siginfo& info, bool to_group) {
  const int signal = static_cast<int>(info.ssi_signo);
  // The end of a child of this process, or of a pipe that it wrote to, concerns only this process.
  if (signal == SIGCHLD && info.ssi_code > 0) return;
  if (signal == SIGPIPE && info.ssi_code == SI_USER && static_cast<pid_t>(info.ssi_pid) == ::getpid()) return;
  if (take_ != nullptr) {
    take_(signal, to_group);
    // No command is left whose stop a shell could see.
    if (DefaultAction(signal) == Action::kStop) ActByDefault(signal);
  } else if (child_ == 0) {
    TakeWaiting(signal);
  } else if (!to_group && info.ssi_code == SI_QUEUE) {
    ::sigqueue(child_, signal, {.sival_ptr = reinterpret_cast<void*>(info.ssi_ptr)});
  } else if (!to_group) {
    ::kill(child_, signal);
  }
}

void SignalRelay::TakeWaiting(int signal) {
  if (::sigismember(&original_.ignored, signal) == 1) return;
  switch (DefaultAction(signal)) {
    case Action::kIgnore:
      return;
    case Action::kStop:
      ActByDefault(signal, before_stop_);
      if (after_stop_ != nullptr) after_stop_();
      return;
    case Action::kEnd:
      if (interrupted_by_ != 0) return;
      interrupted_by_ = signal;
      cancellation_.Cancel();
  }
}

void SignalRelay::ActByDefault(int signal, const std::function<void()>& before_stop) const {
  sigset_t pending;
  ::sigpending(&pending);
  // The kernel discards a SIGCONT at a later stop signal: this SIGCONT came after `signal`.
  if (::sigismember(&pending, SIGCONT) == 1) return;
  // The signal may be ignored here, but not by the command.
  struct sigaction by_default = {};
  struct sigaction before = {};
  by_default.sa_handler = SIG_DFL;
  ::sigaction(signal, &by_default, &before);
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, signal);
  // Pending from here on: a SIGCONT that arrives during `before_stop` discards it, as it ends a stop.
  ::raise(signal);
  if (before_stop != nullptr) before_stop();
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  ::sigaction(signal, &before, nullptr);
}

void SignalRelay::StopAs(int signal) {
  MutexLock lock(&mu_);
  // A SIGCONT cancels pending stop signals, also those of the witness: handle everything that has arrived before.
  TakeAll();
  siginfo_t info = {};
  const bool looked = ::waitid(P_PID, static_cast<id_t>(child_), &info, WCONTINUED | WNOHANG | WNOWAIT) == 0;
  // If the command has continued, its SIGCONT was also sent to this process and will not come again.
  if (looked && info.si_pid == child_) return;
  ActByDefault(signal);
}

int SignalRelay::interrupted_by() const {
  MutexLock lock(&mu_);
  return interrupted_by_;
}

void SignalRelay::InCommand(void* argument) {
  Launch& launch = *static_cast<Launch*>(argument);
  if (launch.witness != nullptr) launch.seen = launch.witness->Take();
  ::sigpending(&launch.pending);
}

absl::StatusOr<pid_t> SignalRelay::StartCommand(const std::vector<std::string>& command,
                                                const std::vector<std::string>& environment, int cgroup) {
  absl::StatusOr<std::unique_ptr<GroupWitness>> witness = GroupWitness::Start();
  MutexLock lock(&mu_);
  TakeAll();
  if (interrupted_by_ != 0) return absl::CancelledError("a signal ended the wait");
  Launch launch;
  ::sigemptyset(&launch.pending);
  if (witness.ok()) {
    witness_ = *std::move(witness);
    launch.witness = witness_.get();
    // Discards signals from before.
    witness_->Take();
  }
  const absl::StatusOr<pid_t> child =
      SpawnCommand(command, environment,
                   {.signals = original_, .cgroup = cgroup, .before = &SignalRelay::InCommand, .argument = &launch});
  if (!child.ok()) return child;
  child_ = *child;
  RecordGroup(launch.seen);
  // For signals sent to the group before the command belonged to it.
  for (int signal = 1; signal < NSIG; ++signal) {
    if (launch.seen[static_cast<size_t>(signal)] > 0 && ::sigismember(&launch.pending, signal) == 0)
      ::kill(*child, signal);
  }
  // Signals that were blocked have waited for the command. A signal pending for this thread alone is read only by it.
  const sigset_t all = AllSignals();
  ::signalfd(signals_.get(), &all, SFD_CLOEXEC | SFD_NONBLOCK);
  TakeAll();
  return child;
}

void SignalRelay::AroundStop(std::function<void()> before, std::function<void()> after) {
  MutexLock lock(&mu_);
  before_stop_ = std::move(before);
  after_stop_ = std::move(after);
}

void SignalRelay::PassTo(Taker take) {
  MutexLock lock(&mu_);
  take_ = std::move(take);
}

void SignalRelay::Send(int signal) {
  MutexLock lock(&mu_);
  if (take_ != nullptr) {
    take_(signal, /*to_group=*/false);
  } else if (child_ != 0) {
    ::kill(child_, signal);
  } else {
    TakeWaiting(signal);
  }
}

}  // namespace berth::cli
