#include "client/cli/run/holder_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include <berth/permit.h>

#include "absl/algorithm/container.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/cli/run/permit_notice.h"
#include "client/cli/run/signal_relay.h"
#include "client/sdk/transport/environment.h"
#include "client/sdk/transport/session_core.h"
#include "client/sdk/transport/session_entry.h"
#include "common/mutex.h"
#include "common/notification.h"
#include "common/os/fd_passing.h"
#include "common/os/file_io.h"
#include "common/os/nonblocking_write.h"
#include "common/os/os_error.h"
#include "common/os/process_state.h"
#include "common/status_macros.h"
#include "common/thread.h"

namespace berth::cli {
namespace {

// Pause between two looks at the starting process while a permit is awaited.
constexpr absl::Duration kLook = absl::Milliseconds(100);
// Longest delay of a terminal's stop; longer than a wait takes to leave the queue.
constexpr absl::Duration kPausePatience = absl::Seconds(1);
// Maximum size of a report, which contains an environment.
constexpr size_t kMaxReportBytes = 128 << 10;
constexpr char kKeepOption[] = "--keep=";

// Reads a whole file of a process's folder in /proc; empty if the process has ended or is not visible.
// Errors: kResourceExhausted if this process lacks an fd or memory, which leaves open whether the other exists.
absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_NOCTTY | O_CLOEXEC));
  const absl::StatusOr<std::string> text = file ? ReadToEnd(file.get(), path) : OsError(path, errno);
  return text.ok() || absl::IsResourceExhausted(text.status()) ? text : "";
}

// Returns nothing if the process has ended or is not visible. Errors: ReadFile()'s.
absl::StatusOr<std::optional<uid_t>> EffectiveUidOf(pid_t pid) {
  BERTH_ASSIGN_OR_RETURN(const std::string status, ReadFile(absl::StrCat("/proc/", pid, "/status")));
  for (const absl::string_view line : absl::StrSplit(status, '\n')) {
    // "Uid:", then the real uid and the effective uid.
    const std::vector<absl::string_view> fields = absl::StrSplit(line, '\t');
    uid_t uid = 0;
    if (fields[0] == "Uid:" && fields.size() > 2 && absl::SimpleAtoi(fields[2], &uid)) return uid;
  }
  return std::nullopt;
}

// Closes all inherited fds that the holder process does not need. Another process may wait for them to be closed.
void CloseInherited(const HolderTask& task) {
  std::vector<int> needed = {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO, task.owner, task.report,
                             task.verdict};
  // The owner may have opened other files under these numbers since.
  const auto session = internal::SessionNameFromEnvironment();
  if (session.ok() && session->has_value() && internal::HasInherited(**session)) {
    needed.insert(needed.end(), {(*session)->lifeline, (*session)->session_credentials});
  }
  std::sort(needed.begin(), needed.end());
  int next = 0;
  for (const int fd : needed) {
    if (fd > next) ::close_range(static_cast<unsigned>(next), static_cast<unsigned>(fd - 1), 0);
    next = std::max(next, fd + 1);
  }
  ::close_range(static_cast<unsigned>(next), ~0U, 0);
}

// Detaches from the owner's terminal, pipes and working directory. With `say`, a terminal on stderr stays, unless a
// write to it could block. Stdin and stdout are /dev/null from the start.
void Detach(bool say) {
  const bool terminal = say && ::isatty(STDERR_FILENO) != 0;
  if (terminal) MakeOwnNonBlocking(STDERR_FILENO);
  const bool blocks = (::fcntl(STDERR_FILENO, F_GETFL) & O_NONBLOCK) == 0;
  if (!terminal || blocks) ::dup2(STDOUT_FILENO, STDERR_FILENO);
  [[maybe_unused]] const int moved = ::chdir("/");
}

// Opens the verdict of a running holder process, to be read at its end. `argument` has its task; none if it is of
// another version. Errors: kResourceExhausted.
absl::StatusOr<UniqueFd> OpenVerdict(pid_t holder, absl::string_view argument) {
  const absl::StatusOr<HolderTask> task = ParseHolderTask(absl::StripPrefix(argument, kKeepOption));
  if (!task.ok()) return UniqueFd();
  const std::string path = absl::StrCat("/proc/", holder, "/fd/", task->verdict);
  UniqueFd verdict(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  const absl::Status opened = verdict ? absl::OkStatus() : OsError(path, errno);
  if (absl::IsResourceExhausted(opened)) return opened;
  return verdict;
}

// Cancels when the owner ends, or when the starting process ends before it has passed the report on. Until then a wait
// pauses while the starting process is stopped: a stopped wait must be granted nothing. Signals to that process do not
// reach this one. Before the terminal stops that process, it asks for the pause.
class Watch {
 public:
  static absl::StatusOr<std::unique_ptr<Watch>> Start(const HolderTask& task, Cancellation* cancellation) {
    UniqueFd stop(::eventfd(0, EFD_CLOEXEC));
    if (!stop) return OsError("eventfd", errno);
    std::unique_ptr<Watch> watch(new Watch(std::move(stop)));
    BERTH_ASSIGN_OR_RETURN(watch->thread_, Thread::Start("the permit's owner", [raw = watch.get(), task, cancellation] {
                             raw->Run(task, cancellation);
                           }));
    return watch;
  }
  ~Watch() {
    if (!thread_.joinable()) return;
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof(one));
    thread_.join();
  }

  // Waits while the starting process is stopped. From then on the waits of `session` pause with that process.
  void BeginWait(std::shared_ptr<Session> session) {
    MutexLock lock(&mu_);
    UpdateLocked();
    while (paused_) continued_.Wait(&mu_);
    session_ = std::move(session);
  }
  // Ends the waits of the session. Returns whether the starting process runs, so that a grant is reported to it. The
  // process gets no other answer then.
  bool EndWait() {
    MutexLock lock(&mu_);
    UpdateLocked();
    session_ = nullptr;
    reports_ = !paused_;
    return reports_;
  }
  // After a cancellation nothing waits for the starting process to continue.
  void EndPauses() {
    MutexLock lock(&mu_);
    over_ = true;
    UpdateLocked();
  }

 private:
  explicit Watch(UniqueFd stop) : stop_(std::move(stop)) {}

  void UpdateLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const bool pauses = !over_ && !reports_ && (asked_ || IsStopped(parent_));
    if (std::exchange(paused_, pauses) == pauses) return;
    if (!pauses) continued_.SignalAll();
    if (session_ == nullptr) return;
    if (pauses) {
      session_->core()->PauseWaits();
    } else {
      session_->core()->ContinueWaits();
    }
  }

  // Returns false at the end of the connection.
  bool TakeMessage(int socket, bool* passed_on) {
    HolderMessage message;
    if (ReceiveBytes(socket, {reinterpret_cast<char*>(&message), sizeof(message)}) <= 0) return false;
    MutexLock lock(&mu_);
    *passed_on = message == HolderMessage::kPassedOn;
    asked_ = message == HolderMessage::kPause;
    UpdateLocked();
    if (asked_ && !reports_) SendHolderMessage(socket, HolderMessage::kPaused);
    return true;
  }

  void Run(const HolderTask& task, Cancellation* cancellation) {
    pollfd fds[3] = {{.fd = stop_.get(), .events = POLLIN},
                     {.fd = task.owner, .events = POLLIN},
                     {.fd = task.report, .events = POLLIN}};
    while (true) {
      const int look = fds[2].fd < 0 ? -1 : static_cast<int>(absl::ToInt64Milliseconds(kLook));
      const int ready = ::poll(fds, 3, look);
      if (ready == 0) {
        MutexLock lock(&mu_);
        UpdateLocked();
      }
      if (ready <= 0) continue;
      if (fds[0].revents != 0) return;
      bool passed_on = false;
      if (fds[1].revents != 0 || (fds[2].revents != 0 && !TakeMessage(task.report, &passed_on))) {
        cancellation->Cancel();
        return;
      }
      if (passed_on) fds[2].fd = -1;
    }
  }

  const UniqueFd stop_;
  // The process that has not reaped this one yet.
  const pid_t parent_ = ::getppid();
  Mutex mu_;
  CondVar continued_;
  // The session that waits; null for none.
  std::shared_ptr<Session> session_ ABSL_GUARDED_BY(mu_);
  // Whether the starting process has asked for a pause.
  bool asked_ ABSL_GUARDED_BY(mu_) = false;
  bool paused_ ABSL_GUARDED_BY(mu_) = false;
  // Whether the report follows.
  bool reports_ ABSL_GUARDED_BY(mu_) = false;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_;
};

// As AcquirePermits(). A grant that meets a stopped starting process returns, and is requested again once the process
// continues.
absl::StatusOr<HeldPermits> AcquireForParent(const std::shared_ptr<Session>& session, const PermitRequest& request,
                                              Watch& watch, Cancellation* cancellation) {
  const Cancellation::Hook wake(cancellation, [&watch] { watch.EndPauses(); });
  while (true) {
    watch.BeginWait(session);
    absl::StatusOr<HeldPermits> permits = AcquirePermits(session, request, request.label, cancellation);
    if (watch.EndWait() || !permits.ok()) return permits;
    // If the permits ended meanwhile, the next request learns why.
    permits->Release();
  }
}

bool IsPaused(absl::string_view text) {
  return text.size() == 1 && text[0] == static_cast<char>(HolderMessage::kPaused);
}

// Makes the holder process's wait leave the queue. Returns false if the report has come first, or the end of the holder
// process.
bool PauseHolder(int socket) {
  SendHolderMessage(socket, HolderMessage::kPause);
  pollfd answer = {.fd = socket, .events = POLLIN};
  if (::poll(&answer, 1, static_cast<int>(absl::ToInt64Milliseconds(kPausePatience))) <= 0) return true;
  char text[2];
  const ssize_t got = ReceiveBytes(socket, text, MSG_PEEK);
  if (got <= 0 || !IsPaused({text, static_cast<size_t>(got)})) return false;
  ReceiveBytes(socket, text);
  return true;
}

void Send(int report, const HolderReport& what) {
  const std::string text = FormatHolderReport(what);
  [[maybe_unused]] const ssize_t sent = ::send(report, text.data(), text.size(), MSG_NOSIGNAL);
}

}  // namespace

absl::StatusOr<HolderTask> ParseHolderTask(absl::string_view text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  HolderTask task;
  if (parts.size() != 4 || !absl::SimpleAtoi(parts[0], &task.owner) || !absl::SimpleAtoi(parts[1], &task.report) ||
      !absl::SimpleAtoi(parts[2], &task.verdict)) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not a holder process's task"));
  }
  task.token = parts[3];
  return task;
}

std::string FormatHolderTask(const HolderTask& task) {
  return absl::StrCat(task.owner, ",", task.report, ",", task.verdict, ",", task.token);
}

std::string FormatHolderReport(const HolderReport& report) {
  std::string text = absl::StrCat(report.code, absl::string_view("\0", 1), report.reason);
  for (const std::string& entry : report.environment)
    absl::StrAppend(&text, absl::string_view("\0", 1), entry);
  return text;
}

absl::StatusOr<HolderReport> ParseHolderReport(absl::string_view text) {
  std::vector<std::string> parts = absl::StrSplit(text, '\0');
  HolderReport report;
  if (parts.size() < 2 || !absl::SimpleAtoi(parts[0], &report.code)) {
    return absl::InvalidArgumentError("the text is not a holder process's report");
  }
  report.reason = parts[1];
  report.environment.assign(std::make_move_iterator(parts.begin() + 2), std::make_move_iterator(parts.end()));
  return report;
}

void SendHolderMessage(int socket, HolderMessage message) {
  [[maybe_unused]] const ssize_t sent = ::send(socket, &message, sizeof(message), MSG_NOSIGNAL | MSG_DONTWAIT);
}

absl::StatusOr<HolderReport> AwaitHolderReport(int socket, const TerminalStops& stops) {
  while (true) {
    pollfd fds[2] = {{.fd = socket, .events = POLLIN}, {.fd = stops.fd(), .events = POLLIN}};
    if (::poll(fds, 2, -1) < 0) continue;
    if (fds[0].revents != 0) {
      std::string text(kMaxReportBytes, '\0');
      const ssize_t got = ReceiveBytes(socket, text);
      if (got <= 0) return absl::InternalError("the permit's holder process ended before it reported a result");
      text.resize(static_cast<size_t>(got));
      // A pause that came too late.
      if (IsPaused(text)) continue;
      return ParseHolderReport(text);
    }
    const int stop = stops.Pending();
    if (stop == 0 || !PauseHolder(socket)) continue;
    ActOnPending(stop);
    SendHolderMessage(socket, HolderMessage::kContinue);
  }
}

ExitStatus RunHolderProcess(const Globals& globals, const PermitRequest& asked, const HolderNotices& notices,
                            const HolderTask& task) {
  CloseInherited(task);
  PermitRequest request = asked;
  const auto notice = std::make_shared<PermitNotice>(notices.on_revoke, [owner = task.owner](int signal) {
    ::syscall(SYS_pidfd_send_signal, owner, signal, nullptr, 0);
  });
  request.on_event = [notice](const PermitEvent& event) { notice->Take(event); };
  ::prctl(PR_SET_NAME, "berth-holder");
  const auto fail = [&](const ExitStatus& end) {
    Send(task.report, {.code = end.code, .reason = std::string(end.not_run)});
    return end;
  };
  const absl::StatusOr<std::unique_ptr<SignalRelay>> relay = SignalRelay::Start();
  if (!relay.ok()) return fail(FailedToAcquire(relay.status(), request));
  Cancellation& cancellation = (*relay)->cancellation();
  const absl::StatusOr<std::unique_ptr<Watch>> watch = Watch::Start(task, &cancellation);
  if (!watch.ok()) return fail(FailedToAcquire(watch.status(), request));
  Notification over;
  const Cancellation::Hook hook(&cancellation, [&over] { over.Notify(); });

  const absl::StatusOr<std::shared_ptr<Session>> session =
      Session::Open({.folder = globals.folder,
                     .label = request.label,
                     .admin = globals.admin,
                     .observer = globals.observer,
                     .on_silence = request.quiet ? nullptr : &ComplainOfSilence});
  if (!session.ok()) return fail(FailedToAcquire(session.status(), request));
  absl::StatusOr<HeldPermits> permits = AcquireForParent(*session, request, **watch, &cancellation);
  if (over.HasBeenNotified()) return fail({.code = kRunFailed, .not_run = "interrupted"});
  if (!permits.ok()) return fail(FailedToAcquire(permits.status(), request));
  const absl::StatusOr<std::vector<std::string>> environment = EnvironmentOf(**session, *permits, request);
  if (!environment.ok()) return fail(FailedToAcquire(environment.status(), request));

  HolderReport report = {.environment = *environment};
  std::string named = absl::StrCat(kHolderVariable, "=", ::getpid(), " ", task.token);
  for (const std::string& entry : *environment) {
    absl::StrAppend(&named, " ", absl::string_view(entry).substr(0, entry.find('=')));
  }
  report.environment.push_back(std::move(named));
  Detach(notices.say);
  Send(task.report, report);
  over.WaitForNotification();
  (*session)->core()->BeginLastReturns();
  std::optional<EndNotice> ended = permits->end();
  const std::optional<EndNotice> released = permits->Release();
  if (!ended.has_value()) ended = released;
  const std::string why = ended.has_value() ? Describe(*ended) : "";
  // Without a release that reads it, the pipe has no reader.
  [[maybe_unused]] const ssize_t written = WriteWithoutBlocking(task.verdict, why.data(), why.size());
  if (!(*session)->joined()) (*session)->End().IgnoreError();
  return {};
}

absl::StatusOr<std::vector<std::string>> NamesOfHolder(absl::string_view value) {
  std::vector<std::string> words = absl::StrSplit(value, ' ', absl::SkipEmpty());
  pid_t pid = 0;
  if (words.size() < 2 || !absl::SimpleAtoi(words[0], &pid) || pid <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(kHolderVariable, "=\"", value, "\" does not name a holder process; run `berth acquire` again"));
  }
  words.erase(words.begin(), words.begin() + 2);
  // A shell evaluates `unset NAME`.
  for (const std::string& name : words) {
    const bool is_name = !absl::ascii_isdigit(name[0]) &&
                         absl::c_all_of(name, [](char c) { return absl::ascii_isalnum(c) || c == '_'; });
    if (!is_name) {
      return absl::InvalidArgumentError(absl::StrCat(
          kHolderVariable, "=\"", value, "\": \"", name, "\" is no variable's name; run `berth acquire` again"));
    }
  }
  words.push_back(kHolderVariable);
  return words;
}

absl::StatusOr<FoundHolder> FindHolder(absl::string_view value) {
  BERTH_RETURN_IF_ERROR(NamesOfHolder(value).status());
  const std::vector<std::string> words = absl::StrSplit(value, ' ', absl::SkipEmpty());
  FoundHolder found;
  if (!absl::SimpleAtoi(words[0], &found.pid)) return absl::InvalidArgumentError("unreachable");
  found.pidfd = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, found.pid, 0)));
  const absl::Status gone =
      absl::NotFoundError(absl::StrCat("the permit's holder process ", found.pid, " has ended"));
  if (!found.pidfd) {
    const absl::Status failed =
        OsError(absl::StrCat("cannot look at the permit's holder process ", found.pid, ": pidfd_open"), errno);
    return absl::IsResourceExhausted(failed) ? failed : gone;
  }
  BERTH_ASSIGN_OR_RETURN(const std::optional<uid_t> uid, EffectiveUidOf(found.pid));
  // The pid may belong to another process by now. Data read after opening the pidfd belongs to the pidfd's process, or
  // the read fails.
  BERTH_ASSIGN_OR_RETURN(const std::string line, ReadFile(absl::StrCat("/proc/", found.pid, "/cmdline")));
  const std::vector<std::string> arguments = absl::StrSplit(line, '\0');
  const auto ours = std::find_if(arguments.begin(), arguments.end(), [&](const std::string& argument) {
    return absl::StartsWith(argument, kKeepOption) && absl::EndsWith(argument, "," + words[1]);
  });
  if (ours == arguments.end() || !uid.has_value()) return gone;
  // Any user can start a process with such a command line: the holder process must belong to this user.
  if (*uid != ::geteuid()) {
    return absl::FailedPreconditionError(absl::StrCat("the permit's holder process ", found.pid, " belongs to uid ",
                                                      *uid, ", and this is uid ", ::geteuid(),
                                                      ": run `berth release` as uid ", *uid));
  }
  BERTH_ASSIGN_OR_RETURN(found.verdict, OpenVerdict(found.pid, *ours));
  BERTH_ASSIGN_OR_RETURN(const std::string environment, ReadFile(absl::StrCat("/proc/", found.pid, "/environ")));
  found.environment = absl::StrSplit(environment, '\0', absl::SkipEmpty());
  return found;
}

std::optional<std::string> ValueIn(const std::vector<std::string>& entries, absl::string_view name) {
  for (const std::string& entry : entries) {
    const size_t end = entry.find('=');
    if (end != std::string::npos && absl::string_view(entry).substr(0, end) == name)
      return entry.substr(end + 1);
  }
  return std::nullopt;
}

std::string ShellQuote(absl::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

std::string ShellExports(const std::vector<std::string>& entries) {
  std::string text;
  for (const std::string& entry : entries) {
    const size_t end = entry.find('=');
    absl::StrAppend(&text, "export ", entry.substr(0, end), "=", ShellQuote(entry.substr(end + 1)), ";\n");
  }
  return text;
}

std::string ShellRestore(const std::vector<std::string>& names, const std::vector<std::string>& before) {
  std::string text;
  for (const std::string& name : names) {
    if (const std::optional<std::string> value = ValueIn(before, name)) {
      absl::StrAppend(&text, ShellExports({absl::StrCat(name, "=", *value)}));
    } else {
      absl::StrAppend(&text, "unset ", name, ";\n");
    }
  }
  return text;
}

}  // namespace berth::cli
