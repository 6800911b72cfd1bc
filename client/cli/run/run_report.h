// RunReport: reports to scripts whether a verb ran its command, by a configurable exit code and by machine-readable
// lines.

#ifndef CLIENT_CLI_RUN_RUN_REPORT_H_
#define CLIENT_CLI_RUN_RUN_REPORT_H_

#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "client/cli/command.h"
#include "client/cli/exit_status.h"
#include "common/os/unique_fd.h"
#include "common/os/whole_file.h"

namespace berth::cli {

struct RunReportOptions {
  // The verb's exit code when no command ran; 0: the code of the reason is used.
  int not_run_code = 0;
  // Path of the file; empty for no file.
  std::string status_file;
  // Negative for no fd.
  int status_fd = -1;
};

// Adds the options to a verb. `options` must live as long as `verb`.
void AddRunReportOptions(Command verb, RunReportOptions* options);

// Reports a command line that the parser rejects as a command that did not run, wherever the options of the report
// stand among `words`, those without the program's name. A file therefore has no report of an earlier run. Returns the
// exit code: that of --exit-code-not-run if it is valid, otherwise kUsage.
int ReportUsageError(Command app, std::span<const char* const> words);

// Writes lines of NAME=VALUE. If a name occurs twice, the last line counts.
//
//   ran=yes code=3 permit=held exit=3          the command ended with code 3 (`signal=9` instead of `code` if killed)
//   ran=yes code=0 permit=ended exit=79        the permit ended before its release
//   ran=exec                                   berth has become the command (--exec); ran=no follows if that failed
//   ran=no reason=timed-out exit=124           no command ran; also `signal=15` if a signal ended the wait
class RunReport {
 public:
  explicit RunReport(const RunReportOptions& options) : options_(options) {}

  // Opens the file, or takes the fd, so that no command inherits it. Call it before any other code opens an fd.
  // Errors: why the file or the fd is not writable.
  absl::Status Open();

  // NotRun() and Ran() write the report and return how the verb ends.
  // NotRun() requires: `end.not_run` has the reason.
  ExitStatus NotRun(const ExitStatus& end);
  ExitStatus Ran(const ExitStatus& command, bool permit_ended);

  // Writes that the process becomes the command.
  void Becomes();

  // Marks the command as started: `--exit-code-not-run` no longer applies.
  void Started();

  // The exit code of a process that runs out of memory: the code of `--exit-code-not-run` if an open report has one and
  // the command has not started, otherwise kRunFailed. Callable from any thread and within an allocation.
  static int CodeWithoutMemory();

 private:
  void Write(const std::string& lines);

  const RunReportOptions options_;
  // The file with the first lines, until it is moved to its path; later lines go to `output_`.
  std::optional<WholeFile> file_;
  UniqueFd output_;
};

}  // namespace berth::cli

#endif  // CLIENT_CLI_RUN_RUN_REPORT_H_
