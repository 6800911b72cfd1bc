#include "client/cli/run/run_report.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/os/nonblocking_write.h"
#include "common/os/os_error.h"
#include "common/steady_clock.h"

namespace berth::cli {
namespace {

constexpr char kNotRunOption[] = "--exit-code-not-run";

// A process has at most one report.
std::atomic<int> code_without_memory = kRunFailed;
// Shells and wrappers use higher codes for commands that cannot be executed and for signals.
constexpr int kMaxNotRunCode = 125;
// Lowest number for the duplicate of the report's fd: above the numbers that scripts use.
constexpr int kFirstFd = 10;

// This process holds its permits while it writes, and the text fits into any pipe that is not full.
constexpr absl::Duration kReaderPatience = absl::Seconds(1);
constexpr absl::Duration kPause = absl::Milliseconds(5);

// Returns errno of a failed F_DUPFD_CLOEXEC: EINVAL means that the limit does not allow numbers from kFirstFd.
int ErrorOfDuplicate() { return errno == EINVAL ? EMFILE : errno; }

// Returns the error that the parser prints; empty for a valid code.
std::string CheckNotRunCode(const std::string& text) {
  int code = 0;
  if (absl::SimpleAtoi(text, &code) && code >= 1 && code <= kMaxNotRunCode) return "";
  return absl::StrCat("\"", text, "\" is not an exit code from 1 to ", kMaxNotRunCode,
                      ": 0 is success; from 126, codes mean a command that cannot be executed, or a signal");
}

std::string EndLine(const ExitStatus& end) {
  return end.signal == 0 ? absl::StrCat("code=", end.code, "\n") : absl::StrCat("signal=", end.signal, "\n");
}

}  // namespace

void AddRunReportOptions(Command verb, RunReportOptions* options) {
  verb.AddOption(kNotRunOption, &options->not_run_code,
                 "End with this code, 1 to 125, whenever the command did not run (125 for `git bisect run`); a signal "
                 "that ends the wait still ends this process")
      .Check(CheckNotRunCode);
  const Option file = verb.AddOption(
      "--status-file", &options->status_file,
      "Write the outcome to this file, as lines of NAME=VALUE: ran=yes, ran=no or ran=exec; code= or signal= "
      "of the command; reason= if it did not run; permit=held or permit=ended; exit=");
  verb.AddOption("--status-fd", &options->status_fd,
                 "Write the same lines to this open fd, which the command does not inherit")
      .NonNegative()
      .Excludes(file);
}

int CodeOfUsageError(Command app) {
  const std::string text = app.LastValueInSubcommand(kNotRunOption);
  int code = 0;
  return CheckNotRunCode(text).empty() && absl::SimpleAtoi(text, &code) ? code : kUsage;
}

absl::Status RunReport::Open() {
  if (options_.not_run_code != 0) code_without_memory = options_.not_run_code;
  if (!options_.status_file.empty()) {
    absl::StatusOr<WholeFile> file = WholeFile::Create(options_.status_file, 0666);
    if (!file.ok()) {
      return absl::Status(file.status().code(),
                          absl::StrCat("--status-file ", file.status().message(), " (--status-fd takes an open fd)"));
    }
    // Remove the file of an earlier run, so that it is not mistaken for this run's report.
    if (::unlink(options_.status_file.c_str()) < 0 && errno != ENOENT) {
      return OsError(absl::StrCat("--status-file ", options_.status_file), errno);
    }
    output_.reset(::fcntl(file->fd(), F_DUPFD_CLOEXEC, kFirstFd));
    if (!output_) return OsError(absl::StrCat("--status-file ", options_.status_file), ErrorOfDuplicate());
    file_.emplace(*std::move(file));
  }
  if (options_.status_fd < 0) return absl::OkStatus();
  const int mode = ::fcntl(options_.status_fd, F_GETFL);
  if (mode >= 0) output_.reset(::fcntl(options_.status_fd, F_DUPFD_CLOEXEC, kFirstFd));
  if (!output_) return OsError(absl::StrCat("--status-fd ", options_.status_fd), ErrorOfDuplicate());
  if ((mode & O_ACCMODE) == O_RDONLY) {
    output_.reset();
    return absl::InvalidArgumentError(absl::StrCat("--status-fd ", options_.status_fd, " is open for reading only"));
  }
  // The reader waits for the end of this process, not of the command. The standard fds remain the command's.
  if (options_.status_fd > STDERR_FILENO) ::close(options_.status_fd);
  return absl::OkStatus();
}

ExitStatus RunReport::NotRun(const ExitStatus& end) {
  ExitStatus chosen = end;
  if (options_.not_run_code != 0 && end.signal == 0) chosen.code = options_.not_run_code;
  Write(absl::StrCat("ran=no\nreason=", end.not_run, "\n", end.signal == 0 ? "" : EndLine(end), "exit=", chosen.code,
                     "\n"));
  return chosen;
}

ExitStatus RunReport::Ran(const ExitStatus& command, bool permit_ended) {
  const ExitStatus end = permit_ended ? ExitStatus{.code = kPermitEnded} : command;
  Write(absl::StrCat("ran=yes\n", EndLine(command), "permit=", permit_ended ? "ended" : "held", "\nexit=", end.code,
                     "\n"));
  return end;
}

void RunReport::Becomes() { Write("ran=exec\n"); }

void RunReport::Started() { code_without_memory = kRunFailed; }

int RunReport::CodeWithoutMemory() { return code_without_memory; }

void RunReport::Write(const std::string& lines) {
  if (!output_) return;
  size_t written = 0;
  absl::Time last = SteadyNow();
  while (written < lines.size()) {
    // A full file, or a reader that closed its end or reads nothing, must not end or hold up this process and hide the
    // command's code.
    const ssize_t wrote = WriteWithoutBlocking(output_.get(), lines.data() + written, lines.size() - written);
    if (wrote > 0) {
      written += static_cast<size_t>(wrote);
      last = SteadyNow();
      continue;
    }
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0 && errno != EAGAIN) {
      Complain(absl::StrCat("cannot write the status: ", OsError("write", errno).message()));
      break;
    }
    if (SteadyNow() - last > kReaderPatience) {
      Complain(absl::StrCat("cannot write the status: its reader has read nothing for ",
                            absl::FormatDuration(kReaderPatience)));
      break;
    }
    absl::SleepFor(kPause);
  }
  if (file_.has_value()) {
    if (const absl::Status placed = file_->Commit(); !placed.ok()) Complain(placed.message());
    file_.reset();
  }
}

}  // namespace berth::cli
