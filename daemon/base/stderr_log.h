// The log of each process of the daemon: lines on stderr, which all of them share.
//
// No process waits for the reader of the log (common/line_output.h): that reader may be stopped, slow or gone, and
// every lease depends on these processes.

#ifndef DAEMON_BASE_STDERR_LOG_H_
#define DAEMON_BASE_STDERR_LOG_H_

#include "absl/strings/string_view.h"
#include "common/line_output.h"

namespace berth {

// Returns the log. Never destroyed: threads of a driver may outlive main().
LineOutput& StderrLog();

// Writes `text` as one line, with unprintable code points and line ends written out (common/terminal_text.h): a path
// may contain them.
void LogLine(absl::string_view text);

// Hands the number of the lines that the reader has not taken on to the program that this process executes next, in its
// environment. The program calls ContinueLog() first, and reports them as left out. Neither is thread-safe: they
// change the environment.
void HandLogOn();
void ContinueLog();
// Undoes HandLogOn(): this program continues.
void KeepLog();

}  // namespace berth

#endif  // DAEMON_BASE_STDERR_LOG_H_
