#include "client/cli/run/signal_relay.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/os/os_error.h"

namespace berth::cli {
namespace {

enum class Action { kEnd, kStop, kIgnore };

Action DefaultAction(int signal) {
  switch (signal) {
    case SIGSTOP:
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

bool IsStop(int signal) { return DefaultAction(signal) == Action::kStop; }

// The kernel discards a pending SIGCONT at a stop signal, and pending stop signals at a SIGCONT.
bool DiscardsPending(int signal) { return IsStop(signal) || signal == SIGCONT; }

// Whether a signal is pending that arrived later than `signal` and discards it.
bool IsOvertaken(int signal) {
  sigset_t pending;
  ::sigpending(&pending);
  if (IsStop(signal)) return ::sigismember(&pending, SIGCONT) == 1;
  return signal == SIGCONT && std::any_of(std::begin(kTerminalStops), std::end(kTerminalStops),
                                          [&](int stop) { return ::sigismember(&pending, stop) == 1; });
}

int SignalOf(const signalfd_siginfo& info) { return static_cast<int>(info.ssi_signo); }

// Queued signals are delivered one by one; of every other signal at most one is pending.
bool IsQueued(int signal) { return signal >= SIGRTMIN; }

// Whether two signals may count as one where they are close to each other. Between two that discard pending signals, a
// signal of the opposite effect may have come.
bool MayMerge(int signal) { return !IsQueued(signal) && !DiscardsPending(signal); }

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

// Returns the parent's pid; 0 if /proc does not show it.
pid_t ParentOf(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  // "PID (name) state parent ...", where the name may contain anything.
  const std::vector<std::string> fields = absl::StrSplit(text.substr(text.rfind(')') + 1), ' ');
  pid_t parent = 0;
  return fields.size() > 2 && absl::SimpleAtoi(fields[2], &parent) ? parent : 0;
}

// Whether the command would lead this process's group without wrappers: this process leads the group, or is the command
// of such a wrapper.
bool StandsForLeader() {
  std::error_code error;
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", error);
  for (pid_t pid = ::getpid(); pid != ::getpgrp();) {
    pid = ParentOf(pid);
    if (error || pid == 0) return false;
    if (std::filesystem::read_symlink(absl::StrCat("/proc/", pid, "/exe"), error) != own) return false;
  }
  return true;
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
  sigset_t none;
  ::sigemptyset(&none);
  UniqueFd signals(::signalfd(-1, &none, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals) return OsError("signalfd", errno);
  UniqueFd stops(::signalfd(-1, &none, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!stops) return OsError("signalfd", errno);
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
  std::unique_ptr<SignalRelay> relay(
      new SignalRelay(std::move(signals), std::move(stops), std::move(wake), original));
  {
    MutexLock lock(&relay->mu_);
    relay->Divide(Unblocked(original), ActingStops(original));
  }
  absl::StatusOr<Thread> thread = Thread::Start("signals", [raw = relay.get()] { raw->Run(); });
  if (!thread.ok()) {
    SetSignalSettings(original);
    return thread.status();
  }
  relay->thread_ = *std::move(thread);
  return relay;
}

SignalRelay::SignalRelay(UniqueFd signals, UniqueFd stops, UniqueFd wake, const SignalSettings& original)
    : signals_(std::move(signals)),
      stops_(std::move(stops)),
      wake_(std::move(wake)),
      original_(original),
      main_thread_(::pthread_self()) {}

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
    primed_ = false;
    if (child_ == 0) {
      TakeAll();
    } else {
      Read();
      DiscardStops();
    }
  }
  SetSignalSettings(original_);
}

void SignalRelay::Divide(const sigset_t& all, const sigset_t& stops) {
  sigset_t others = all;
  for (const int signal : kTerminalStops) {
    if (::sigismember(&stops, signal) == 1) ::sigdelset(&others, signal);
  }
  ::signalfd(signals_.get(), &others, SFD_CLOEXEC | SFD_NONBLOCK);
  ::signalfd(stops_.get(), &stops, SFD_CLOEXEC | SFD_NONBLOCK);
  pending_stops_ = stops;
}

void SignalRelay::Run() {
  while (true) {
    pollfd fds[3] = {{.fd = signals_.get(), .events = POLLIN},
                     {.fd = stops_.get(), .events = POLLIN},
                     {.fd = wake_.get(), .events = POLLIN}};
    ::poll(fds, 3, -1);
    if (fds[2].revents != 0) return;
    MutexLock lock(&mu_);
    TakeAll();
  }
}

std::vector<signalfd_siginfo> SignalRelay::Read() {
  std::vector<signalfd_siginfo> all;
  signalfd_siginfo info;
  bool continued = false;
  bool ended = false;
  while (::read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    all.push_back(info);
    continued = continued || SignalOf(info) == SIGCONT;
    ended = ended || SignalOf(info) == SIGCHLD;
  }
  if (ended) ReapAdopted();
  // A SIGCONT that this discards has the same effect as the one read, which is not yet handled.
  if (continued && primed_) Prime();
  return all;
}

void SignalRelay::ReapAdopted() {
  while (true) {
    siginfo_t info = {};
    const int result = ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT);
    if (result < 0 || info.si_pid == 0 || info.si_pid == child_) return;
    ::waitpid(info.si_pid, nullptr, 0);
  }
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

void SignalRelay::DiscardStops() {
  signalfd_siginfo info;
  while (::read(stops_.get(), &info, sizeof(info)) == sizeof(info)) {
  }
}

void SignalRelay::TakeAll() {
  TakeRead();
  TakeStops();
}

void SignalRelay::TakeStops() {
  // The process is about to end.
  if (child_ == 0 && interrupted_by_ != 0) return DiscardStops();
  sigset_t pending;
  ::sigpending(&pending);
  for (const int signal : kTerminalStops) {
    if (::sigismember(&pending_stops_, signal) == 0 || ::sigismember(&pending, signal) == 0) continue;
    if (take_ == nullptr) {
      if (before_stop_ != nullptr) before_stop_();
      ActOnPending(signal);
      if (after_stop_ != nullptr) after_stop_();
    } else {
      if (witness_ != nullptr) RecordGroup(witness_->Take());
      take_(signal, std::exchange(of_group_[static_cast<size_t>(signal)], 0) > 0);
      // No command is left whose stop a shell could see.
      ActOnPending(signal);
    }
  }
}

void SignalRelay::TakeRead() {
  const std::vector<signalfd_siginfo> first = Read();
  if (first.empty()) return;
  std::vector<Received> all;
  if (witness_ == nullptr) {
    // Positive codes are from the kernel itself, usually for the terminal.
    for (const signalfd_siginfo& info : first) all.push_back({info, info.ssi_code > 0});
  } else {
    Classify(first, &all);
    // A SIGCONT that came meanwhile has discarded an earlier stop signal in the witness.
    if (const std::vector<signalfd_siginfo> more = Read(); !more.empty()) Classify(more, &all);
    DropStaleCounts();
  }
  const bool apart = IsApart();
  bool continues = false;
  for (auto at = all.begin(); at != all.end(); ++at) {
    const int signal = SignalOf(at->info);
    // A SIGCONT for the group has undone the stop for the command, too. The witness's count may lack the stop signal.
    const bool undone = IsStop(signal) && !apart && std::any_of(at + 1, all.end(), [&](const Received& each) {
                          return SignalOf(each.info) == SIGCONT && each.to_group;
                        });
    if (undone) continue;
    // The command receives a forwarded SIGCONT only now, and must receive the stop signal that came later again.
    const bool to_group = at->to_group && !(continues && IsStop(signal));
    continues = continues || (signal == SIGCONT && (!to_group || apart || overtook_));
    Take(at->info, to_group, at->to_group && apart);
  }
}

void SignalRelay::Classify(const std::vector<signalfd_siginfo>& signals, std::vector<Received>* all) {
  const bool continued = std::any_of(signals.begin(), signals.end(),
                                     [](const signalfd_siginfo& info) { return SignalOf(info) == SIGCONT; });
  // A stopped witness could not answer.
  if (continued) witness_->Continue();
  RecordGroup(witness_->Take());
  sigset_t counted;
  ::sigemptyset(&counted);
  for (const signalfd_siginfo& info : signals) {
    const int signal = SignalOf(info);
    const bool to_group = TakeOfGroup(info);
    if (to_group) ::sigaddset(&counted, signal);
    const bool merged = ::sigismember(&counted, signal) == 1 || ::sigismember(&merged_, signal) == 1;
    if (to_group || !merged || !MayMerge(signal)) all->push_back({info, to_group});
  }
  // Every signal that the witness has counted is pending here, or was read before.
  ::sigpending(&merged_);
  for (int signal = 1; signal < NSIG; ++signal) {
    if (::sigismember(&counted, signal) == 0) ::sigdelset(&merged_, signal);
  }
}

void SignalRelay::DropStaleCounts() {
  sigset_t pending;
  ::sigpending(&pending);
  for (int signal = 1; signal < NSIG; ++signal) {
    if (!IsQueued(signal) && ::sigismember(&pending, signal) == 0) of_group_[static_cast<size_t>(signal)] = 0;
  }
}

bool SignalRelay::IsApart() const {
  if (child_ == 0 || take_ != nullptr) return false;
  return ::getpgid(child_) != ::getpgrp() && ::getsid(child_) == ::getsid(0) && StandsForLeader();
}

void SignalRelay::Take(const signalfd_siginfo& info, bool to_group, bool apart) {
  const int signal = SignalOf(info);
  // The end of a child of this process, or of a pipe that it wrote to, concerns only this process.
  if (signal == SIGCHLD && info.ssi_code > 0) return;
  if (signal == SIGPIPE && info.ssi_code == SI_USER && static_cast<pid_t>(info.ssi_pid) == ::getpid()) return;
  if (take_ != nullptr) {
    take_(signal, to_group);
  } else if (child_ == 0) {
    TakeWaiting(signal);
  } else if (apart && ::getpgid(child_) == child_) {
    // Without this process, the command's group would be this one.
    Forward(signal, -child_, &info);
  } else if (!to_group || apart || (overtook_ && DiscardsPending(signal))) {
    Forward(signal, child_, &info);
  }
}

void SignalRelay::Forward(int signal, pid_t target, const signalfd_siginfo* info) {
  // The command would receive it after the SIGCONT that has undone it, and stay stopped.
  if (IsStop(signal) && IsOvertaken(signal)) return;
  if (info != nullptr && info->ssi_code == SI_QUEUE && target > 0) {
    ::sigqueue(target, signal, {.sival_ptr = reinterpret_cast<void*>(info->ssi_ptr)});
  } else {
    ::kill(target, signal);
  }
  if (!DiscardsPending(signal)) return;
  // A signal for the group may have reached the command before this one, but not after it.
  GroupWitness::AwaitKill();
  overtook_ = IsOvertaken(signal);
}

void SignalRelay::TakeWaiting(int signal) {
  if (::sigismember(&original_.ignored, signal) == 1) return;
  switch (DefaultAction(signal)) {
    case Action::kIgnore:
      return;
    case Action::kStop:
      // Only one that Send() passes: TakeStops() takes the others. It stays pending until then.
      ::kill(::getpid(), signal);
      return;
    case Action::kEnd:
      if (interrupted_by_ != 0) return;
      interrupted_by_ = signal;
      cancellation_.Cancel();
  }
}

void SignalRelay::Prime() const {
  for (const int signal : kTerminalStops) ::pthread_kill(main_thread_, signal);
}

void SignalRelay::StopAs(int signal) {
  MutexLock lock(&mu_);
  const auto stopped = [this](int options) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    siginfo_t info = {};
    const int result = ::waitid(P_PID, static_cast<id_t>(child_), &info, WSTOPPED | WNOHANG | options);
    return result == 0 && info.si_pid == child_;
  };
  // A SIGCONT for this process continues the command first.
  const auto handled = [] { return !IsOvertaken(SIGSTOP); };
  mu_.Await(absl::Condition(&handled));
  // A SIGCONT for the group has reached the command, too. A SIGSTOP for the group stops this process here.
  GroupWitness::AwaitKill();
  if (!stopped(WNOWAIT)) return;
  sigset_t pending;
  ::sigpending(&pending);
  if (::sigismember(&pending, SIGCONT) == 1) return;
  const auto is_pending = [&pending](int stop) { return ::sigismember(&pending, stop) == 1; };
  // A later stop signal has discarded that SIGCONT before it was read.
  if (!std::all_of(std::begin(kTerminalStops), std::end(kTerminalStops), is_pending)) Prime();
  signal == SIGSTOP ? static_cast<void>(::raise(signal)) : ActOnPending(signal);
  ::sigpending(&pending);
  // Every SIGCONT discards all of them. After one, the command may have stopped again by a signal that is pending here,
  // too: a job that continues in the background reads its terminal.
  const auto is_left = [&](int stop) { return stop == signal || is_pending(stop); };
  if (!std::all_of(std::begin(kTerminalStops), std::end(kTerminalStops), is_left)) return;
  // The kernel does not stop the first process of a PID namespace, nor a process group that no shell watches.
  stopped(0);
  Prime();
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
      Forward(signal, child_);
  }
  // Signals that were blocked have waited for the command. A signal pending for this thread alone is read only by it.
  sigset_t none;
  ::sigemptyset(&none);
  Divide(AllSignals(), none);
  TakeAll();
  primed_ = true;
  Prime();
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
  sigset_t stops;
  ::sigemptyset(&stops);
  for (const int signal : kTerminalStops) ::sigaddset(&stops, signal);
  Divide(AllSignals(), stops);
}

void SignalRelay::Send(int signal) {
  MutexLock lock(&mu_);
  if (take_ != nullptr) {
    take_(signal, /*to_group=*/false);
  } else if (child_ != 0) {
    Forward(signal, child_);
  } else {
    TakeWaiting(signal);
  }
}

}  // namespace berth::cli
