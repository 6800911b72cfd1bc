#include "client/cli/keeper.h"

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
#include <fstream>
#include <memory>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "client/cli/permit_notice.h"
#include "client/cli/signal_relay.h"
#include "client/permit.h"
#include "common/notification.h"
#include "common/os_error.h"
#include "common/session_capsule.h"
#include "common/status_macros.h"

namespace berth::cli {
namespace {

// What ends with this process anyway is not waited for longer.
constexpr absl::Duration kEndPatience = absl::Seconds(2);
constexpr char kKeepOption[] = "--keep=";

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The value of NAME in entries of NAME=VALUE; nothing where it has none.
std::optional<std::string> ValueIn(const std::vector<std::string>& entries, absl::string_view name) {
  for (const std::string& entry : entries) {
    const size_t end = entry.find('=');
    if (end != std::string::npos && absl::string_view(entry).substr(0, end) == name)
      return entry.substr(end + 1);
  }
  return std::nullopt;
}

// Closes what came from whoever wanted the permit, which may wait for the end of it: all but what the keeper needs.
void CloseInherited(const KeeperTask& task) {
  std::vector<int> kept = {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO, task.owner, task.report};
  if (const char* const session = ::getenv(kSessionVariable)) {
    const std::vector<absl::string_view> fds = absl::StrSplit(session, ',');
    for (size_t i = 0; i < std::min<size_t>(fds.size(), 2); ++i) {
      if (int fd = -1; absl::SimpleAtoi(fds[i], &fd)) kept.push_back(fd);
    }
  }
  std::sort(kept.begin(), kept.end());
  int next = 0;
  for (const int fd : kept) {
    if (fd > next) ::close_range(static_cast<unsigned>(next), static_cast<unsigned>(fd - 1), 0);
    next = std::max(next, fd + 1);
  }
  ::close_range(static_cast<unsigned>(next), ~0U, 0);
}

// Lets go of what the owner's terminal, pipes and folders are. With `say`, a terminal that is stderr stays, opened
// anew: who writes to that one is never kept waiting.
void Detach(bool say) {
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  UniqueFd terminal;
  if (say && ::isatty(STDERR_FILENO) != 0) {
    terminal = UniqueFd(::open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  }
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO}) ::dup2(null.get(), fd);
  ::dup2(terminal ? terminal.get() : null.get(), STDERR_FILENO);
  [[maybe_unused]] const int moved = ::chdir("/");
}

// Cancels when the owner ends, and when who started the keeper does before it has passed the report on.
class Watch {
 public:
  Watch(const KeeperTask& task, Cancellation* cancellation)
      : stop_(::eventfd(0, EFD_CLOEXEC)), thread_([this, task, cancellation] { Run(task, cancellation); }) {}
  ~Watch() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof(one));
    thread_.join();
  }

 private:
  void Run(const KeeperTask& task, Cancellation* cancellation) {
    pollfd fds[3] = {{.fd = stop_.get(), .events = POLLIN},
                     {.fd = task.owner, .events = POLLIN},
                     {.fd = task.report, .events = POLLIN}};
    while (true) {
      if (::poll(fds, 3, -1) < 0) continue;
      if (fds[0].revents != 0) return;
      char passed_on;
      const bool over = fds[1].revents != 0 ||
                        (fds[2].revents != 0 && ::recv(task.report, &passed_on, sizeof(passed_on), 0) <= 0);
      if (over) {
        cancellation->Cancel();
        return;
      }
      if (fds[2].revents != 0) fds[2].fd = -1;
    }
  }

  const UniqueFd stop_;
  std::thread thread_;
};

void Send(int report, const KeeperReport& what) {
  const std::string text = FormatKeeperReport(what);
  [[maybe_unused]] const ssize_t sent = ::send(report, text.data(), text.size(), MSG_NOSIGNAL);
}

}  // namespace

absl::StatusOr<KeeperTask> ParseKeeperTask(absl::string_view text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  KeeperTask task;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &task.owner) ||
      !absl::SimpleAtoi(parts[1], &task.report)) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is no keeper's task"));
  }
  task.token = parts[2];
  return task;
}

std::string FormatKeeperTask(const KeeperTask& task) {
  return absl::StrCat(task.owner, ",", task.report, ",", task.token);
}

std::string FormatKeeperReport(const KeeperReport& report) {
  std::string text = absl::StrCat(report.code);
  for (const std::string& entry : report.environment)
    absl::StrAppend(&text, absl::string_view("\0", 1), entry);
  return text;
}

absl::StatusOr<KeeperReport> ParseKeeperReport(absl::string_view text) {
  std::vector<std::string> parts = absl::StrSplit(text, '\0');
  KeeperReport report;
  if (!absl::SimpleAtoi(parts[0], &report.code))
    return absl::InvalidArgumentError("this is no keeper's report");
  report.environment.assign(std::make_move_iterator(parts.begin() + 1), std::make_move_iterator(parts.end()));
  return report;
}

ExitStatus Keep(const Globals& globals, const PermitWish& asked, const KeeperManners& manners,
                const KeeperTask& task) {
  CloseInherited(task);
  PermitWish wish = asked;
  wish.on_event = NoticeOfPermit(manners.on_revoke, [owner = task.owner](int signal) {
    ::syscall(SYS_pidfd_send_signal, owner, signal, nullptr, 0);
  });
  ::prctl(PR_SET_NAME, "berth-keeper");
  const auto fail = [&](const ExitStatus& end) {
    Send(task.report, {.code = end.code});
    return end;
  };
  const absl::StatusOr<std::unique_ptr<SignalRelay>> relay = SignalRelay::Start();
  if (!relay.ok()) return fail(FailedToAcquire(relay.status(), wish));
  Cancellation& cancellation = (*relay)->cancellation();
  const Watch watch(task, &cancellation);
  Notification over;
  const Cancellation::Hook hook(&cancellation, [&over] { over.Notify(); });

  const absl::StatusOr<std::shared_ptr<Session>> session =
      Session::Open({.folder = globals.folder,
                     .label = wish.label,
                     .admin = globals.admin,
                     .observer = globals.observer});
  if (!session.ok()) return fail(FailedToAcquire(session.status(), wish));
  absl::StatusOr<HeldPermits> permits = AcquireWish(*session, wish, wish.label, &cancellation);
  if (over.HasBeenNotified()) return fail({.code = kRunFailed});
  if (!permits.ok()) return fail(FailedToAcquire(permits.status(), wish));
  const absl::StatusOr<std::vector<std::string>> environment = EnvironmentOf(**session, *permits);
  if (!environment.ok()) return fail(FailedToAcquire(environment.status(), wish));

  KeeperReport report = {.environment = *environment};
  std::string named = absl::StrCat(kKeeperVariable, "=", ::getpid(), " ", task.token);
  for (const std::string& entry : *environment) {
    absl::StrAppend(&named, " ", absl::string_view(entry).substr(0, entry.find('=')));
  }
  report.environment.push_back(std::move(named));
  Detach(manners.say);
  Send(task.report, report);
  over.WaitForNotification();
  permits->Release();
  if (!(*session)->joined()) (*session)->End(kEndPatience).IgnoreError();
  return {};
}

absl::StatusOr<std::vector<std::string>> NamesOfKeeper(absl::string_view value) {
  std::vector<std::string> words = absl::StrSplit(value, ' ', absl::SkipEmpty());
  pid_t pid = 0;
  if (words.size() < 2 || !absl::SimpleAtoi(words[0], &pid) || pid <= 0) {
    return absl::InvalidArgumentError(absl::StrCat(kKeeperVariable, "=\"", value, "\" names no keeper"));
  }
  words.erase(words.begin(), words.begin() + 2);
  words.push_back(kKeeperVariable);
  return words;
}

absl::StatusOr<FoundKeeper> FindKeeper(absl::string_view value) {
  BERTH_RETURN_IF_ERROR(NamesOfKeeper(value).status());
  const std::vector<std::string> words = absl::StrSplit(value, ' ', absl::SkipEmpty());
  FoundKeeper found;
  if (!absl::SimpleAtoi(words[0], &found.pid)) return absl::InvalidArgumentError("unreachable");
  found.pidfd = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, found.pid, 0)));
  const absl::Status gone =
      absl::NotFoundError(absl::StrCat("the permit's keeper ", found.pid, " has ended"));
  if (!found.pidfd) return gone;
  // The number may be somebody else's by now; what is read after the pidfd was opened is its process's or nobody's.
  const std::vector<std::string> arguments =
      absl::StrSplit(ReadFile(absl::StrCat("/proc/", found.pid, "/cmdline")), '\0');
  const bool ours = std::any_of(arguments.begin(), arguments.end(), [&](const std::string& argument) {
    return absl::StartsWith(argument, kKeepOption) && absl::EndsWith(argument, "," + words[1]);
  });
  if (!ours) return gone;
  found.environment =
      absl::StrSplit(ReadFile(absl::StrCat("/proc/", found.pid, "/environ")), '\0', absl::SkipEmpty());
  return found;
}

std::string ShellQuote(absl::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

std::string ShellExports(const std::vector<std::string>& entries) {
  std::string text;
  for (const std::string& entry : entries) {
    const size_t end = entry.find('=');
    absl::StrAppend(&text, "export ", entry.substr(0, end), "=", ShellQuote(entry.substr(end + 1)), "\n");
  }
  return text;
}

std::string ShellRestore(const std::vector<std::string>& names, const std::vector<std::string>& before) {
  std::string text;
  for (const std::string& name : names) {
    if (const std::optional<std::string> value = ValueIn(before, name)) {
      absl::StrAppend(&text, ShellExports({absl::StrCat(name, "=", *value)}));
    } else {
      absl::StrAppend(&text, "unset ", name, "\n");
    }
  }
  return text;
}

}  // namespace berth::cli
