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

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <berth/visible_devices.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/format.h"
#include "client/cli/run/child.h"
#include "client/cli/run/holder_process.h"
#include "client/cli/run/permit_notice.h"
#include "client/cli/run/permit_request.h"
#include "client/cli/verbs.h"
#include "common/label.h"
#include "common/os/os_error.h"
#include "common/os/process_capacity.h"
#include "common/secret.h"
#include "common/status_macros.h"
#include "google/protobuf/struct.pb.h"

namespace berth::cli {
namespace {

// Maximum time for a holder process to return its permit after SIGTERM.
constexpr absl::Duration kReleasePatience = absl::Seconds(10);
// Maximum size of the reason for the early end of a permit, which is one clause.
constexpr size_t kMaxVerdictBytes = 1024;

struct Options {
  PermitRequest request;
  bool shell = false;
  // 0: the parent process.
  pid_t owner = 0;
  // Name of the signal that the owner receives when the permit is revoked; empty: no signal.
  std::string on_revoke;
  // Set only for the holder process: its HolderTask.
  std::string keep;
};

struct StartedHolder {
  pid_t pid = 0;
  UniqueFd report;
};

// `signalled`: a later signal to the owner must be permitted.
absl::StatusOr<UniqueFd> OpenOwner(pid_t owner, bool signalled) {
  if (owner == 0) {
    return absl::FailedPreconditionError(
        "the process that runs `berth` is outside this PID namespace and cannot be watched: name the owner by --owner");
  }
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, owner, 0)));
  if (!pidfd) return LocalError(absl::StrCat("process ", owner, " (--owner) cannot be watched"), errno);
  if (signalled && ::syscall(SYS_pidfd_send_signal, pidfd.get(), 0, nullptr, 0) < 0) {
    return LocalError(absl::StrCat("--on-revoke: cannot send a signal to process ", owner), errno);
  }
  return pidfd;
}

std::string NameOfProcess(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/comm"));
  std::string name;
  std::getline(file, name);
  return ToLabel(name);
}

// Starts this program again with the same arguments and a HolderTask, as the holder process. It runs in a session of
// its own, so that the signals that a terminal sends to the owner do not end it. `blocked`: the signals that it blocks.
absl::StatusOr<StartedHolder> StartHolder(int owner, const std::string& label, const sigset_t& blocked) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0) return OsError("socketpair", errno);
  StartedHolder holder = {.report = UniqueFd(ends[0])};
  const UniqueFd theirs(ends[1]);
  // `berth release` opens the other end of the pipe again, through the holder process's folder in /proc.
  if (::pipe2(ends, O_CLOEXEC) < 0) return OsError("pipe2", errno);
  const UniqueFd unread(ends[0]);
  const UniqueFd verdict(ends[1]);
  // A reader of this process's output waits for the end of this process, not of the holder process.
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null) return LocalError("/dev/null", errno);
  std::ifstream file("/proc/self/cmdline");
  if (!file && errno == ENOENT) return LocalError("`berth acquire` needs a mounted /proc: /proc/self/cmdline", errno);
  if (!file) return LocalError("/proc/self/cmdline", errno);
  const std::string line((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<std::string> words = absl::StrSplit(line, '\0');
  words.pop_back();
  // A "--" at the end: further options would follow the end of the options.
  words.erase(std::find(words.begin(), words.end(), "--"), words.end());
  // If no label was given.
  if (!label.empty()) words.push_back("--label=" + label);
  words.push_back(absl::StrCat("--keep=", FormatHolderTask({.owner = owner,
                                                            .report = theirs.get(),
                                                            .verdict = verdict.get(),
                                                            .token = absl::StrCat(absl::Hex(RandomId()))})));
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO}) ::posix_spawn_file_actions_adddup2(&actions, null.get(), fd);
  // Duplicated onto itself, so that it is inherited.
  for (const int fd : {owner, theirs.get(), verdict.get()}) ::posix_spawn_file_actions_adddup2(&actions, fd, fd);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  // A release ends the holder process by SIGTERM, even if the owner ignores and blocks this signal.
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGTERM);
  ::posix_spawnattr_setsigdefault(&attributes, &signals);
  signals = blocked;
  ::sigdelset(&signals, SIGTERM);
  ::posix_spawnattr_setsigmask(&attributes, &signals);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  const int error = ::posix_spawn(&holder.pid, "/proc/self/exe", &actions, &attributes, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) return NotStarted("the permit's holder process", error);
  return holder;
}

std::string ForPrograms(pid_t owner, const StartedHolder& holder, const HolderReport& report) {
  google::protobuf::Struct json;
  (*json.mutable_fields())["owner"].set_number_value(owner);
  (*json.mutable_fields())["keeper"].set_number_value(holder.pid);
  google::protobuf::Struct* const entries = (*json.mutable_fields())["environment"].mutable_struct_value();
  for (const std::string& entry : report.environment) {
    const size_t end = entry.find('=');
    (*entries->mutable_fields())[entry.substr(0, end)].set_string_value(entry.substr(end + 1));
  }
  return *FormatJsonLine(json);
}

// Makes the evaluating shell check that the owner still exists. A shell that was started only to run `berth` has ended
// by then, and its permit has returned.
std::string ForShells(pid_t owner, const HolderReport& report) {
  return absl::StrCat(ShellExports(report.environment), "[ -e /proc/", owner, " ] || { echo 'berth: process ", owner,
                      ", the owner of the permit, has ended: use --owner $$' >&2; (exit ", kRunFailed, "); }\n");
}

// Ends with `end`. Makes `eval` end the same way, as its status is that of the evaluated text.
ExitStatus FailInShell(bool shell, const ExitStatus& end) {
  if (shell) ::printf("(exit %d)\n", end.code);
  return end;
}

// As FailInShell(), for the end of an acquire; with --json prints the code and the reason as JSON.
ExitStatus NotAcquired(const Globals& globals, const Options& options, const ExitStatus& end) {
  if (globals.json) {
    google::protobuf::Struct json;
    (*json.mutable_fields())["code"].set_number_value(end.code);
    (*json.mutable_fields())["reason"].set_string_value(std::string(end.not_run));
    ::fputs(FormatJsonLine(json)->c_str(), stdout);
  }
  return FailInShell(options.shell, end);
}

ExitStatus Acquire(const Globals& globals, const Options& options) {
  absl::Status sensible = Check(options.request);
  if (sensible.ok() && options.shell == globals.json) {
    sensible = absl::InvalidArgumentError("expected one of --shell (then evaluate the output) and --json");
  }
  if (!sensible.ok()) {
    Report(sensible);
    return NotAcquired(globals, options, {.code = kUsage, .not_run = "usage"});
  }
  if (!options.keep.empty()) {
    const absl::StatusOr<HolderTask> task = ParseHolderTask(options.keep);
    if (!task.ok()) return {.code = kUsage};
    // A program may run on another terminal, or without one.
    return RunHolderProcess(globals, options.request, {.say = options.shell, .on_revoke = options.on_revoke}, *task);
  }
  const pid_t owner = options.owner == 0 ? ::getppid() : options.owner;
  const absl::StatusOr<UniqueFd> pidfd = OpenOwner(owner, !options.on_revoke.empty());
  if (!pidfd.ok()) return NotAcquired(globals, options, FailedToAcquire(pidfd.status(), options.request));
  const std::string label = options.request.label.empty() ? NameOfProcess(owner) : "";
  absl::StatusOr<std::unique_ptr<TerminalStops>> stops = TerminalStops::Hold();
  if (!stops.ok()) return NotAcquired(globals, options, FailedToAcquire(stops.status(), options.request));
  const absl::StatusOr<StartedHolder> holder = StartHolder(pidfd->get(), label, (*stops)->blocked_before());
  if (!holder.ok()) return NotAcquired(globals, options, FailedToAcquire(holder.status(), options.request));
  const absl::StatusOr<HolderReport> report = AwaitHolderReport(holder->report.get(), **stops);
  stops->reset();
  if (!report.ok()) return NotAcquired(globals, options, FailedToAcquire(report.status(), options.request));
  if (report->code != 0) return NotAcquired(globals, options, {.code = report->code, .not_run = report->reason});
  const std::string text = options.shell ? ForShells(owner, *report) : ForPrograms(owner, *holder, *report);
  const bool shown = ::fwrite(text.data(), 1, text.size(), stdout) == text.size() && ::fflush(stdout) == 0;
  if (!shown) return FailedToAcquire(LocalError("cannot write standard output", errno), options.request);
  SendHolderMessage(holder->report.get(), HolderMessage::kPassedOn);
  return {};
}

absl::Status EndHolder(const FoundHolder& holder) {
  ::syscall(SYS_pidfd_send_signal, holder.pidfd.get(), SIGTERM, nullptr, 0);
  pollfd gone = {.fd = holder.pidfd.get(), .events = POLLIN};
  if (::poll(&gone, 1, static_cast<int>(absl::ToInt64Milliseconds(kReleasePatience))) > 0)
    return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat("the permit's holder process ", holder.pid,
                                                  " did not end in time: it received SIGTERM; check it with ps"));
}

// Returns what is known of the environment before the permit without the holder process, which knew all of it. Without
// these entries a shell would go on with another daemon, or with all devices.
std::vector<std::string> KnownBefore() {
  std::vector<std::string> known;
  if (const char* const folder = ::getenv("BERTH_FOLDER")) known.push_back(absl::StrCat("BERTH_FOLDER=", folder));
  if (const auto visible = VisibleDevices()) known.push_back(absl::StrCat("CUDA_VISIBLE_DEVICES=", *visible));
  return known;
}

// The end of `berth release`, and the environment of the shell or program after it.
struct Released {
  ExitStatus end;
  // The variables to restore; empty if they stay as they are.
  std::vector<std::string> names;
  // NAME=VALUE: the variables that have a value then.
  std::vector<std::string> before;
};

Released ReleaseLast() {
  const char* const value = ::getenv(kHolderVariable);
  if (value == nullptr || *value == '\0') {
    return {.end = Report(absl::NotFoundError(absl::StrCat("no permit of `berth acquire` in this environment: ",
                                                           kHolderVariable, " is not set")))};
  }
  const absl::StatusOr<std::vector<std::string>> names = NamesOfHolder(value);
  if (!names.ok()) return {.end = Report(names.status())};
  const absl::StatusOr<FoundHolder> holder = FindHolder(value);
  absl::Status ended = holder.ok() ? EndHolder(*holder) : holder.status();
  std::string why(kMaxVerdictBytes, '\0');
  const ssize_t got = ended.ok() ? ::read(holder->verdict.get(), why.data(), why.size()) : 0;
  why.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  if (!why.empty()) ended = absl::AbortedError(absl::StrCat("the permit ended before its release: ", why));
  Released released = {.end = Report(ended)};
  if (!why.empty()) released.end = {.code = kPermitEnded, .not_run = "ended"};
  // A permit of another user stays, and so does one that this process cannot look at. Their environment does, too.
  if (!holder.ok() && !absl::IsNotFound(holder.status())) return released;
  released.names = *names;
  released.before = holder.ok() ? holder->environment : KnownBefore();
  return released;
}

// A variable to unset is null.
std::string ForPrograms(const Released& released) {
  google::protobuf::Struct json;
  (*json.mutable_fields())["code"].set_number_value(released.end.code);
  if (released.end.code != kOk) (*json.mutable_fields())["reason"].set_string_value(std::string(released.end.not_run));
  google::protobuf::Struct* const entries = (*json.mutable_fields())["environment"].mutable_struct_value();
  for (const std::string& name : released.names) {
    google::protobuf::Value& entry = (*entries->mutable_fields())[name];
    if (const std::optional<std::string> value = ValueIn(released.before, name)) {
      entry.set_string_value(*value);
    } else {
      entry.set_null_value(google::protobuf::NULL_VALUE);
    }
  }
  return *FormatJsonLine(json);
}

ExitStatus Release(const Globals& globals, bool shell) {
  if (shell && globals.json) {
    Report(absl::InvalidArgumentError("expected at most one of --shell (then evaluate the output) and --json"));
    return FailInShell(shell, {.code = kUsage});
  }
  const Released released = ReleaseLast();
  if (globals.json) ::fputs(ForPrograms(released).c_str(), stdout);
  if (!shell) return released.end;
  ::fputs(ShellRestore(released.names, released.before).c_str(), stdout);
  return released.end.code == kOk ? released.end : FailInShell(shell, released.end);
}

}  // namespace

void AddAcquire(Command app, const Globals& globals) {
  const Command verb = app.AddSubcommand(
      "acquire", "Acquire permits for a shell, until it releases them or ends: eval \"$(berth acquire --shell)\"");
  verb.SetFooter(absl::StrCat("Ends with 0 when the permits are granted, and so does eval. Else, both end with\n",
                              kPermitExitCodes, "  125  any other failure"));
  const auto options = std::make_shared<Options>();
  verb.AddFlag("--shell", &options->shell, "Print text that a POSIX shell evaluates");
  verb.AddOption("--owner", &options->owner,
                 "The pid of the process with whose end the permits return (default: the process that runs `berth`)")
      .Within(1, std::numeric_limits<pid_t>::max());
  AddPermitOptions(verb, &options->request);
  AddOnRevoke(verb, "the owner", &options->on_revoke);
  verb.AddOption("--keep", &options->keep, "").Hide();
  verb.Runs([&globals, options] { return Acquire(globals, *options); });
}

void AddRelease(Command app, const Globals& globals) {
  const Command verb = app.AddSubcommand(
      "release", "Release the permits that `berth acquire` acquired last: eval \"$(berth release --shell)\"");
  verb.SetFooter("Ends with 79 if the permits ended before the release: revoked, held too long, or lost.");
  const auto shell = std::make_shared<bool>(false);
  verb.AddFlag("--shell", shell.get(), "Print text that restores the shell's environment");
  verb.Runs([&globals, shell] { return Release(globals, *shell); });
}

}  // namespace berth::cli
