// The holder process: holds a permit on behalf of an owner that cannot hold it itself, such as a shell, and
// ends with the owner.
//
// `berth acquire` starts the holder process and prints the grant. The holder process watches its owner through a pidfd,
// so that the permit returns however the owner ends. `berth release` finds the holder process through the variable that
// names it.

#ifndef CLIENT_CLI_RUN_HOLDER_PROCESS_H_
#define CLIENT_CLI_RUN_HOLDER_PROCESS_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cli/exit_status.h"
#include "client/cli/run/child.h"
#include "client/cli/run/permit_request.h"
#include "client/cli/verbs.h"
#include "common/os/unique_fd.h"

namespace berth::cli {

// Names the holder process of the last permit that was acquired for a shell: "<pid> <token> <NAME>...". The NAMEs are
// the environment variables that the acquire has set.
inline constexpr char kHolderVariable[] = "BERTH_PERMIT_KEEPER";

// The task on a holder process's command line: `berth acquire --keep=<owner's pidfd>,<socket>,<pipe>,<token>`.
struct HolderTask {
  // Readable when the owner has ended.
  int owner = -1;
  // SEQPACKET socket to the `berth acquire` that started the holder process. Carries the report to it, and its
  // HolderMessages.
  int report = -1;
  // The write end of a pipe. At its end the holder process writes there why its permit ended early. RLIMIT_FSIZE limits
  // even memory files, but no pipe.
  int verdict = -1;
  // Identifies the holder process, together with its pid.
  std::string token;
};

// Errors: kInvalidArgument.
absl::StatusOr<HolderTask> ParseHolderTask(absl::string_view text);
std::string FormatHolderTask(const HolderTask& task);

// The report of the holder process to `berth acquire`.
struct HolderReport {
  // 0 when the permit was granted; otherwise the exit code, and the error is already printed on stderr.
  int code = 0;
  // Why no permit was granted, as a keyword (ExitStatus::not_run).
  std::string reason;
  // NAME=VALUE: the entries to set in the owner's environment.
  std::vector<std::string> environment;
};

std::string FormatHolderReport(const HolderReport& report);
// Errors: kInvalidArgument.
absl::StatusOr<HolderReport> ParseHolderReport(absl::string_view text);

// The other messages between `berth acquire` and the holder process, one byte each. A report is longer.
enum class HolderMessage : char {
  // To the holder process: this process is about to stop by the terminal. A wait leaves the queue, but has its place.
  // The answer is kPaused, or the report if the permit was granted first.
  kPause = 'p',
  kPaused = 'q',
  // To the holder process, once this process continues.
  kContinue = 'c',
  // To the holder process: the report has been passed on. From now on the permit belongs to the owner.
  kPassedOn = 'o',
};

// Sends a message to the other end of the socket. An end that no longer exists, or that reads nothing, misses it.
void SendHolderMessage(int socket, HolderMessage message);

// Waits for the report of the holder process at the other end of `socket`. A signal that `stops` holds back stops this
// process once the holder process waits in no queue, or has not answered for a second.
absl::StatusOr<HolderReport> AwaitHolderReport(int socket, const TerminalStops& stops);

// How a holder process notifies its owner about the permit.
struct HolderNotices {
  // Print notices on stderr if it is a terminal.
  bool say = false;
  // Name of the signal to send when the permit is revoked; empty: no signal.
  std::string on_revoke;
};

// Runs the holder process: acquires, reports, holds until the owner has ended or SIGTERM arrives, and returns the
// permit. Ends early if the starting process ends before it has passed the report on.
ExitStatus RunHolderProcess(const Globals& globals, const PermitRequest& request, const HolderNotices& notices,
                            const HolderTask& task);

// A running holder process, found through the value of kHolderVariable.
struct FoundHolder {
  pid_t pid = 0;
  UniqueFd pidfd;
  // The read end of HolderTask::verdict, non-blocking. At the end, contains the reason if the permit ended before its
  // release; otherwise empty.
  UniqueFd verdict;
  // The environment that the holder process was started with: the owner's environment before the permit.
  std::vector<std::string> environment;
};

// Returns the names in a value of kHolderVariable. Errors: kInvalidArgument if the value is malformed.
absl::StatusOr<std::vector<std::string>> NamesOfHolder(absl::string_view value);
// Errors: kNotFound if the holder process no longer exists; kFailedPrecondition if it belongs to another user;
// kInvalidArgument; kResourceExhausted if this process lacks an fd or memory, which leaves open whether it exists.
absl::StatusOr<FoundHolder> FindHolder(absl::string_view value);

// Returns the value of NAME in entries of NAME=VALUE; nothing without such an entry.
std::optional<std::string> ValueIn(const std::vector<std::string>& entries, absl::string_view name);
// Quotes `text` as a single word of a POSIX shell.
std::string ShellQuote(absl::string_view text);
// Commands for a POSIX shell, one a line. Without quotes, `eval` joins the lines, so each ends with a semicolon.
// ShellExports() sets entries of NAME=VALUE. ShellRestore() gives each name its value in `before`, or unsets it.
std::string ShellExports(const std::vector<std::string>& entries);
std::string ShellRestore(const std::vector<std::string>& names, const std::vector<std::string>& before);

}  // namespace berth::cli

#endif  // CLIENT_CLI_RUN_HOLDER_PROCESS_H_
