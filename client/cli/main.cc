// `berth`: the command-line program for permits, blocks and the node.

#include <malloc.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <new>
#include <span>
#include <sstream>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "client/cli/command.h"
#include "client/cli/exit_status.h"
#include "client/cli/run/child.h"
#include "client/cli/run/run_report.h"
#include "client/cli/verbs.h"
#include "client/cli/verbs/history.h"
#include "client/cli/verbs/probe.h"
#include "common/command_line.h"
#include "common/os/nonblocking_write.h"
#include "common/os/stack_limit.h"
#include "common/version.h"
#include "grpc/support/log.h"

namespace berth::cli {

// Takes the place of protobuf's static initializer, which registers each file's descriptors at the start: half of the
// instructions of `berth run -- true`, which needs none of them. Protobuf also registers a file, with those that it
// imports, at the first use of a descriptor of it (AssignDescriptors()). The build links this function in (--wrap).
extern "C" void RegisterAtFirstUse(void* runner, const void* table) asm(
    "__wrap__ZN6google8protobuf8internal20AddDescriptorsRunnerC1EPKNS1_15DescriptorTableE");
void RegisterAtFirstUse(void* /*runner*/, const void* /*table*/) {}

namespace {

struct NamedVerb {
  absl::string_view name;
  void (*add)(Command app, const Globals&);
};

// In the order of the help text.
constexpr NamedVerb kVerbs[] = {{"run", &AddRun},
                                {"acquire", &AddAcquire},
                                {"release", &AddRelease},
                                {"ctest-spec", &AddCtestSpec},
                                {"ctest-run", &AddCtestRun},
                                {"status", &AddStatus},
                                {"permits", &AddPermits},
                                {"explain", &AddExplain},
                                {"blocks", &AddBlocks},
                                {"bytes", &AddBytes},
                                {"config", &AddConfig},
                                {"strays", &AddStrays},
                                {"streams", &AddStreams},
                                {"sessions", &AddSessions},
                                {"health", &AddHealth},
                                {"devices", &AddDevices},
                                {"device", &AddDevice},
                                {"probe", &AddProbe},
                                {"topology", &AddTopology},
                                {"budget", &AddBudget},
                                {"reservations", &AddReservations},
                                {"reap", &AddReap},
                                {"log", &AddLog},
                                {"plans", &AddPlans},
                                {"modules", &AddModules},
                                {"stop", &AddStop},
                                {"reset", &AddReset},
                                {"upgrade", &AddUpgrade},
                                {"history", &AddHistory}};

// Describes to the parser the commands that `words` name, or all of them for help. Describing all would take three
// quarters of the instructions of `berth --version`.
void AddVerbs(Command app, const Globals& globals, std::span<char* const> words) {
  const auto contains = [&](absl::string_view word) { return absl::c_linear_search(words, word); };
  const bool all =
      contains("--help") || contains("-h") ||
      (!contains("--version") && absl::c_none_of(kVerbs, [&](const NamedVerb& verb) { return contains(verb.name); }));
  for (const NamedVerb& verb : kVerbs) {
    if (all || contains(verb.name)) verb.add(app, globals);
  }
}

// Returns the "--" that separates the words for the parser from those for the program of `run` or `ctest-run`. For
// every other verb, "--" ends only the options: returns the end of the words.
char** EndOfOwnWords(int argc, char** argv) {
  char** at = argv + 1;
  for (; at < argv + argc && absl::StartsWith(*at, "-") && absl::string_view(*at) != "--"; ++at) {
    if (absl::string_view(*at) == "--folder" && at + 1 < argv + argc) ++at;
  }
  const absl::string_view verb = at < argv + argc ? *at : "";
  if (verb != "--" && verb != "run" && verb != "ctest-run") return argv + argc;
  return std::find(at, argv + argc, absl::string_view("--"));
}

// Whether a shell evaluates the output (`eval "$(berth acquire --shell)"`). An evaluation of nothing succeeds.
bool output_is_evaluated = false;

// Makes such an evaluation end with `code`.
void FailEvaluation(int code) {
  char text[32];
  const int size = ::snprintf(text, sizeof(text), "(exit %d)\n", code);
  if (output_is_evaluated) WriteWithoutBlocking(STDOUT_FILENO, text, static_cast<size_t>(size));
}

// Whether a program reads how `berth --json acquire` or `release` ends (client/cli/verbs/acquire.cc).
bool output_has_end = false;

void FailForPrograms(int code) {
  char text[64];
  const int size = ::snprintf(text, sizeof(text), "{\"code\":%d,\"reason\":\"usage\"}\n", code);
  if (output_has_end) WriteWithoutBlocking(STDOUT_FILENO, text, static_cast<size_t>(size));
}

// Reports a command line that the parser rejects, and returns its exit code. Stderr has the mistake.
int EndRejected(Command app, std::span<const char* const> words) {
  const int code = ReportUsageError(app, words);
  FailEvaluation(code);
  FailForPrograms(code);
  return code;
}

// Without memory nothing can be undone: sessions and permits end with the process.
void EndWithoutMemory() {
  rlimit space = {};
  rlimit data = {};
  ::getrlimit(RLIMIT_AS, &space);
  ::getrlimit(RLIMIT_DATA, &data);
  char why[128] = "berth: cannot get memory\n";
  if (space.rlim_cur != RLIM_INFINITY || data.rlim_cur != RLIM_INFINITY) {
    // The lower of two limits is usually the exceeded one.
    const bool in_data = data.rlim_cur < space.rlim_cur;
    ::snprintf(why, sizeof(why), "berth: cannot get memory: RLIMIT_%s is %llu KiB: ulimit -%c raises it\n",
               in_data ? "DATA" : "AS", static_cast<unsigned long long>(std::min(data.rlim_cur, space.rlim_cur) >> 10),
               in_data ? 'd' : 'v');
  }
  WriteWithoutBlocking(STDERR_FILENO, why, ::strlen(why));
  FailEvaluation(RunReport::CodeWithoutMemory());
  ::_exit(RunReport::CodeWithoutMemory());
}

// Prints gRPC's own messages: gRPC would wait for the reader of stderr.
void LogOfGrpc(gpr_log_func_args* line) {
  Complain(absl::StrCat("gRPC: ", line->message));
  const bool unusable = absl::StartsWith(line->message, "No event engine could be initialized") ||
                        absl::StartsWith(line->message, "Attempted a blocking poll when declared non-polling");
  if (!unusable) return;
  // gRPC would now abort, with a core dump.
  Complain("GRPC_POLL_STRATEGY in the environment names no usable poller, such as epoll1 or poll: unset it");
  ::_exit(kRunFailed);
}

// Before the initializers that may end this process. Words after "--" belong to another program.
[[gnu::constructor(101)]] void LookForReaders(int argc, char** argv) {
  bool json = false;
  bool has_end = false;
  for (int i = 1; i < argc && ::strcmp(argv[i], "--") != 0; ++i) {
    if (::strcmp(argv[i], "--shell") == 0) output_is_evaluated = true;
    if (::strcmp(argv[i], "--json") == 0 || ::strcmp(argv[i], "--json=true") == 0) json = true;
    if (::strcmp(argv[i], "acquire") == 0 || ::strcmp(argv[i], "release") == 0) has_end = true;
  }
  output_has_end = json && has_end;
}

// The static initializers of libraries allocate memory.
[[gnu::constructor(101)]] void HandleWantOfMemory() { std::set_new_handler(EndWithoutMemory); }

// A static initializer of gRPC opens an fd, which it leaves open as number 0.
[[gnu::constructor(101)]] void HoldStandardFds() { ReserveStandardFds(); }

// Answers `berth --version` before the static initializers run. The C library passes main()'s arguments to
// initializers. If the answer cannot be written, main() reports the reason.
[[gnu::constructor(101)]] void AnswerVersion(int argc, char** argv) {
  if (argc != 2 || ::strcmp(argv[1], "--version") != 0) return;
  char answer[64];
  const int size = ::snprintf(answer, sizeof(answer), "berth %s\n", kVersion);
  if (::write(STDOUT_FILENO, answer, static_cast<size_t>(size)) == size) ::_exit(0);
}

// The static initializers of libraries need a part of the stack.
[[gnu::constructor(101)]] void CheckStacks() {
  BoundStacks();
  char why[128] = "";
  if (!LacksStack(why, sizeof(why))) return;
  char text[160];
  const int size = ::snprintf(text, sizeof(text), "berth: %s\n", why);
  WriteWithoutBlocking(STDERR_FILENO, text, static_cast<size_t>(size));
  FailEvaluation(kRunFailed);
  ::_exit(kRunFailed);
}

}  // namespace
}  // namespace berth::cli

int main(int argc, char** argv) {
  using namespace berth::cli;
  HoldSignals();
  gpr_set_log_function(&LogOfGrpc);
  // Debian's abseil checks every lock for deadlocks, and ends a process that lacks memory for that.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  // The C library reserves 64 MiB of address space for each thread's heap if the limit allows.
  rlimit space = {};
  if (::getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY) ::mallopt(M_ARENA_MAX, 1);
  CLI::App app("Lease GPU permits and memory from this node's Berth daemon.", "berth");
  app.set_version_flag("--version", std::string("berth ") + berth::kVersion);
  app.footer(
      "--folder, --admin, --observer and --json may also stand after the command, except after `run`.\n"
      "Ends with 0: done; 1: refused, or not healthy; 64: the command line is invalid; 69: no daemon answers, or this\n"
      "user has no access, e.g. to admin.sock for an operator's command; 125: this process cannot get the threads,\n"
      "memory or fds that it needs. `berth run --help` has the codes of `run`.");
  app.require_subcommand(1);
  // "berth status --json" is equivalent to "berth --json status".
  app.fallthrough();
  Globals globals;
  Verb chosen;
  const Command top(&app, &chosen);
  top.AddOption(
      "--folder", &globals.folder,
      "The folder of the daemon's sockets (default: $BERTH_FOLDER, /run/berth, $XDG_RUNTIME_DIR/berth)");
  top.AddFlag("--admin", &globals.admin, "Use the operators' socket, which shows every tenant");
  top.AddFlag("--observer", &globals.observer,
              "Use the observers' socket, which shows every tenant and accepts no change");
  top.AddFlag("--json", &globals.json, "Print JSON for programs");
  char** const end_of_ours = EndOfOwnWords(argc, argv);
  AddVerbs(top, globals, {argv + 1, end_of_ours});
  globals.command.assign(end_of_ours, argv + argc);
  try {
    app.parse(berth::WordsForParser(static_cast<int>(end_of_ours - argv), argv,
                                    [&app](const std::string& name) { return berth::IsFlag(app, name); }));
  } catch (const CLI::ParseError& error) {
    if (const auto words = app.remaining(); app.get_subcommands().empty() && !words.empty()) {
      Report(absl::InvalidArgumentError(
          absl::StrCat(berth::WithoutMark(words[0]), " is not a command; `berth --help` lists the commands")));
      return EndRejected(top, {argv + 1, argv + argc});
    }
    // Help and version are "errors" with code 0; every invalid command line has the same code.
    std::ostringstream out, err;
    const bool answered = app.exit(error, out, err) == 0;
    Print(out.str());
    const std::string mistake = berth::WithArguments(app, err.str());
    if (!answered) PrintError(absl::StrCat("berth: ", absl::StripTrailingAsciiWhitespace(mistake), "\n"));
    if (answered) return Exit({});
    return EndRejected(top, {argv + 1, argv + argc});
  }
  return Exit(chosen());
}
