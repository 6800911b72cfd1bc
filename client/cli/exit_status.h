// How `berth` ends: the codes that scripts may rely on.

#ifndef CLIENT_CLI_EXIT_STATUS_H_
#define CLIENT_CLI_EXIT_STATUS_H_

#include "absl/status/status.h"

namespace berth::cli {

inline constexpr int kOk = 0;
inline constexpr int kFailed = 1;
// The command line makes no sense.
inline constexpr int kUsage = 64;
// No daemon answers, or not in time.
inline constexpr int kUnreachable = 69;
// `run --no-wait` found no permit free.
inline constexpr int kNotGranted = 75;
// This user may not: its socket is closed to them, or the daemon refuses.
inline constexpr int kDenied = 77;
// `run --timeout` ended before a permit was free.
inline constexpr int kTimedOut = 124;
// `run` failed itself, in no way that has a code of its own.
inline constexpr int kRunFailed = 125;
// The command was found but cannot be executed.
inline constexpr int kCannotExecute = 126;
// The command was not found.
inline constexpr int kCommandNotFound = 127;

// A verb's end: a code, or the signal that its command died of.
struct ExitStatus {
  int code = kOk;
  // Not 0: the process dies of this signal too, so that who waits for it sees what became of the command.
  int signal = 0;
};

// Prints an error that is not OK to stderr and returns its code; kOk for OK.
ExitStatus Report(const absl::Status& status);

// Ends the process's `main`: returns the code, or dies of the signal.
int Exit(const ExitStatus& status);

// Ends the process here and now, and leaves what it has to the kernel: to take a gRPC channel apart takes longer.
[[noreturn]] void ExitNow(const ExitStatus& status);

}  // namespace berth::cli

#endif  // CLIENT_CLI_EXIT_STATUS_H_
