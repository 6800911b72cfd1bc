// Exit codes of `berth` that scripts may rely on.

#ifndef CLIENT_CLI_EXIT_STATUS_H_
#define CLIENT_CLI_EXIT_STATUS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace berth::cli {

inline constexpr int kOk = 0;
inline constexpr int kFailed = 1;
// The command line is invalid.
inline constexpr int kUsage = 64;
// No daemon answers in time, or the daemon or its socket denies this user access.
inline constexpr int kUnreachable = 69;
// `run --no-wait` found no free permit.
inline constexpr int kNotGranted = 75;
// The command ran, or the shell held its permit, but the permit ended early. The first code after those of sysexits.h:
// no test harness reads it as skipped or passed, and few commands exit with it themselves.
inline constexpr int kPermitEnded = 79;
// `run --timeout` expired before a permit was free.
inline constexpr int kTimedOut = 124;
// `run` itself failed, without a more specific code. Any verb: this process cannot get a thread, memory or fds.
inline constexpr int kRunFailed = 125;
// The command was found but cannot be executed.
inline constexpr int kCannotExecute = 126;
// The command was not found.
inline constexpr int kCommandNotFound = 127;

// The result of a verb: an exit code, or the signal that killed its command.
struct ExitStatus {
  int code = kOk;
  // Not 0: this process dies of the same signal, so that its parent sees how the command ended.
  int signal = 0;
  // Not empty: the verb should have run a command, and none ran. The reason as a keyword for scripts
  // (client/cli/run/run_report.h).
  absl::string_view not_run = {};
};

// Print text to stdout or stderr, with characters unsafe for a terminal escaped (common/terminal_text.h). All output of
// this program goes through these two functions or Complain() (tests/tidy). Print() returns whether stdout accepted the
// text.
//
// Text on stderr neither ends nor delays nor stops this process, whatever stderr is (common/line_output.h): a wrapper
// holds a permit and watches a command meanwhile. Lines for a reader that does not read are left out.
bool Print(absl::string_view text);
// Passes on what Print() has buffered. Returns whether stdout accepted it. Exit() reports the first failure.
bool FlushOutput();
void PrintError(absl::string_view lines);

// Prints a line for people to stderr: "berth: " and the text, with characters unsafe for a terminal and line ends
// escaped.
void Complain(absl::string_view text);

// Reports a daemon that does not answer, once: SessionOptions::on_silence.
void ComplainOfSilence(const std::string& socket);
// Reports that a daemon answers that was reported as silent.
void ComplainOfAnswer();

// Opens /dev/null, in the direction that no program uses, as each of stdin, stdout and stderr that is closed, so that
// no socket gets its number. Where /dev/null is missing, opens the root folder without access. Each use still fails
// with EBADF. A command is started without them, as this process was.
// Makes system calls only, and may run before the static initializers of libraries.
void ReserveStandardFds();

// Returns the kernel's error about `what`, a file or process that the user named. Report() does not mistake it for a
// daemon that does not answer or denies access.
absl::Status LocalError(absl::string_view what, int error);

// Prints an error to stderr and returns its code; returns kOk for OK.
ExitStatus Report(const absl::Status& status);

// Ends the process from `main`: returns the code, or dies of the signal.
int Exit(const ExitStatus& status);

// Ends the process immediately, and leaves its resources to the kernel: tearing down a gRPC channel takes longer.
[[noreturn]] void ExitNow(const ExitStatus& status);

}  // namespace berth::cli

#endif  // CLIENT_CLI_EXIT_STATUS_H_
