#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/format.h"
#include "client/cli/keeper.h"
#include "client/cli/permit_notice.h"
#include "client/cli/permit_wish.h"
#include "client/cli/verbs.h"
#include "common/label.h"
#include "common/os_error.h"
#include "common/secret.h"
#include "common/status_macros.h"
#include "google/protobuf/struct.pb.h"

namespace berth::cli {
namespace {

// How long a keeper that was told to end may take to give back.
constexpr absl::Duration kReleasePatience = absl::Seconds(10);
// What a keeper reports is an environment.
constexpr size_t kMaxReportBytes = 128 << 10;

struct Options {
  PermitWish wish;
  bool shell = false;
  // 0 is the process that started this one.
  pid_t owner = 0;
  // What the owner is sent when the permit is taken away; empty for nothing.
  std::string on_revoke;
  // Of a keeper alone.
  std::string keep;
};

struct Keeper {
  pid_t pid = 0;
  UniqueFd report;
};

// `signalled`: it is to be sent a signal some day.
absl::StatusOr<UniqueFd> OpenOwner(pid_t owner, bool signalled) {
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, owner, 0)));
  if (!pidfd) return OsError(absl::StrCat("process ", owner, ", which the permit is to be kept for"), errno);
  if (signalled && ::syscall(SYS_pidfd_send_signal, pidfd.get(), 0, nullptr, 0) < 0) {
    return OsError(absl::StrCat("--on-revoke: a signal to process ", owner), errno);
  }
  return pidfd;
}

std::string NameOfProcess(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/comm"));
  std::string name;
  std::getline(file, name);
  return ToLabel(name);
}

// This program again with the same words and the keeper's task, in a session of its own, so that what a terminal sends
// to the owner does not end it.
absl::StatusOr<Keeper> StartKeeper(int owner, const std::string& label) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0) return OsError("socketpair", errno);
  Keeper keeper = {.report = UniqueFd(ends[0])};
  const UniqueFd theirs(ends[1]);
  std::ifstream file("/proc/self/cmdline");
  const std::string line((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<std::string> words = absl::StrSplit(line, '\0');
  words.pop_back();
  // Where it was not given.
  if (!label.empty()) words.push_back("--label=" + label);
  words.push_back(absl::StrCat("--keep=", FormatKeeperTask({.owner = owner,
                                                            .report = theirs.get(),
                                                            .token = absl::StrCat(absl::Hex(RandomId()))})));
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  // Who reads what this process prints waits for the end of it, not of the keeper.
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  // Onto itself: inherited.
  ::posix_spawn_file_actions_adddup2(&actions, owner, owner);
  ::posix_spawn_file_actions_adddup2(&actions, theirs.get(), theirs.get());
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  const int error = ::posix_spawn(&keeper.pid, "/proc/self/exe", &actions, &attributes, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) return OsError("the permit's keeper", error);
  return keeper;
}

absl::StatusOr<KeeperReport> AwaitReport(const Keeper& keeper) {
  std::string text(kMaxReportBytes, '\0');
  ssize_t got;
  while ((got = ::recv(keeper.report.get(), text.data(), text.size(), 0)) < 0 && errno == EINTR) {
  }
  if (got <= 0) return absl::InternalError("the permit's keeper has ended without a word");
  text.resize(static_cast<size_t>(got));
  return ParseKeeperReport(text);
}

std::string ForPrograms(pid_t owner, const Keeper& keeper, const KeeperReport& report) {
  google::protobuf::Struct json;
  (*json.mutable_fields())["owner"].set_number_value(owner);
  (*json.mutable_fields())["keeper"].set_number_value(keeper.pid);
  google::protobuf::Struct* const entries = (*json.mutable_fields())["environment"].mutable_struct_value();
  for (const std::string& entry : report.environment) {
    const size_t end = entry.find('=');
    (*entries->mutable_fields())[entry.substr(0, end)].set_string_value(entry.substr(end + 1));
  }
  return *FormatJsonLine(json);
}

// Asks of the shell that evaluates it whether the owner is still there: a shell that was only made to run `berth` is
// gone by then, and the permit with it.
std::string ForShells(pid_t owner, const KeeperReport& report) {
  return absl::StrCat(ShellExports(report.environment), "[ -e /proc/", owner, " ] || { echo 'berth: process ",
                      owner, ", for which the permit was kept, has ended: use --owner $$' >&2; (exit ",
                      kRunFailed, "); }\n");
}

// Ends with `end`, and makes `eval` end so, too, which has its status from what it evaluates.
ExitStatus FailInShell(const Options& options, const ExitStatus& end) {
  if (options.shell) ::printf("(exit %d)\n", end.code);
  return end;
}

ExitStatus Acquire(const Globals& globals, const Options& options) {
  absl::Status sensible = Check(options.wish);
  if (sensible.ok() && options.shell == globals.json) {
    sensible = absl::InvalidArgumentError("say --shell, and evaluate what is printed; or --json");
  }
  if (!sensible.ok()) {
    Report(sensible);
    return FailInShell(options, {.code = kUsage});
  }
  if (!options.keep.empty()) {
    const absl::StatusOr<KeeperTask> task = ParseKeeperTask(options.keep);
    if (!task.ok()) return {.code = kUsage};
    // A program may be on another terminal, or on none.
    return Keep(globals, options.wish, {.say = options.shell, .on_revoke = options.on_revoke}, *task);
  }
  const pid_t owner = options.owner == 0 ? ::getppid() : options.owner;
  const absl::StatusOr<UniqueFd> pidfd = OpenOwner(owner, !options.on_revoke.empty());
  if (!pidfd.ok()) return FailInShell(options, FailedToAcquire(pidfd.status(), options.wish));
  const std::string label = options.wish.label.empty() ? NameOfProcess(owner) : "";
  const absl::StatusOr<Keeper> keeper = StartKeeper(pidfd->get(), label);
  if (!keeper.ok()) return FailInShell(options, FailedToAcquire(keeper.status(), options.wish));
  const absl::StatusOr<KeeperReport> report = AwaitReport(*keeper);
  if (!report.ok()) return FailInShell(options, FailedToAcquire(report.status(), options.wish));
  if (report->code != 0) return FailInShell(options, {.code = report->code});
  const std::string text = options.shell ? ForShells(owner, *report) : ForPrograms(owner, *keeper, *report);
  const bool shown = ::fwrite(text.data(), 1, text.size(), stdout) == text.size() && ::fflush(stdout) == 0;
  if (!shown) return FailedToAcquire(OsError("standard output", errno), options.wish);
  // From now on the permit is the owner's.
  const char passed_on = 1;
  [[maybe_unused]] const ssize_t sent =
      ::send(keeper->report.get(), &passed_on, sizeof(passed_on), MSG_NOSIGNAL);
  return {};
}

absl::Status EndKeeper(const FoundKeeper& keeper) {
  ::syscall(SYS_pidfd_send_signal, keeper.pidfd.get(), SIGTERM, nullptr, 0);
  pollfd gone = {.fd = keeper.pidfd.get(), .events = POLLIN};
  if (::poll(&gone, 1, static_cast<int>(absl::ToInt64Milliseconds(kReleasePatience))) > 0)
    return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat("the permit's keeper ", keeper.pid, " has not ended yet"));
}

ExitStatus Release(bool shell) {
  const char* const value = ::getenv(kKeeperVariable);
  if (value == nullptr || *value == '\0') {
    return FailInShell({.shell = shell},
                       Report(absl::NotFoundError(
                           absl::StrCat("nothing was acquired here: ", kKeeperVariable, " is not set"))));
  }
  const absl::StatusOr<std::vector<std::string>> names = NamesOfKeeper(value);
  if (!names.ok()) return FailInShell({.shell = shell}, Report(names.status()));
  const absl::StatusOr<FoundKeeper> keeper = FindKeeper(value);
  const absl::Status ended = keeper.ok() ? EndKeeper(*keeper) : keeper.status();
  if (shell) {
    ::fputs(ShellRestore(*names, keeper.ok() ? keeper->environment : std::vector<std::string>()).c_str(),
            stdout);
  }
  const ExitStatus end = Report(ended);
  return ended.ok() ? end : FailInShell({.shell = shell}, end);
}

}  // namespace

void AddAcquire(CLI::App& app, const Globals& globals, Verb* chosen) {
  CLI::App* const verb = app.add_subcommand(
      "acquire",
      "Acquire permits for a shell, until it releases them or ends: eval \"$(berth acquire --shell)\"");
  verb->footer(absl::StrCat("Ends with 0 when it has them, and so does eval. Else, both\n", kPermitExitCodes,
                            "  125  anything else"));
  const auto options = std::make_shared<Options>();
  verb->add_flag("--shell", options->shell, "Print what a POSIX shell is to evaluate");
  verb->add_option("--owner", options->owner,
                   "The process with whose end the permits come back (default: the one that runs this)")
      ->check(CheckCount);
  AddPermitOptions(verb, &options->wish);
  AddOnRevoke(verb, "that process", &options->on_revoke);
  verb->add_option("--keep", options->keep)->group("");
  verb->callback(
      [&globals, chosen, options] { *chosen = [&globals, options] { return Acquire(globals, *options); }; });
}

void AddRelease(CLI::App& app, const Globals&, Verb* chosen) {
  CLI::App* const verb = app.add_subcommand(
      "release", "Give back what `berth acquire` acquired last: eval \"$(berth release --shell)\"");
  const auto shell = std::make_shared<bool>(false);
  verb->add_flag("--shell", *shell,
                 "Print what a POSIX shell is to evaluate: its environment as it was before");
  verb->callback([chosen, shell] { *chosen = [shell] { return Release(*shell); }; });
}

}  // namespace berth::cli
