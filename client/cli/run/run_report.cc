#include "client/cli/run/run_report.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/os/nonblocking_write.h"
#include "common/os/os_error.h"
#include "common/os/unique_fd.h"
#include "common/steady_clock.h"

namespace berth::cli {
namespace {

constexpr char kNotRunOption[] = "--exit-code-not-run";
constexpr char kFileOption[] = "--status-file";
constexpr char kFdOption[] = "--status-fd";

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

// Returns 0 for an invalid code.
int CodeIn(const std::string& text) {
  int code = 0;
  return absl::SimpleAtoi(text, &code) && code >= 1 && code <= kMaxNotRunCode ? code : 0;
}

// Returns the error that the parser prints; empty for a valid code.
std::string CheckNotRunCode(const std::string& text) {
  if (CodeIn(text) != 0) return "";
  return absl::StrCat("\"", text, "\" is not an exit code from 1 to ", kMaxNotRunCode,
                      ": 0 is success; from 126, codes mean a command that cannot be executed, or a signal");
}

// Whether the file is a report of an earlier run.
bool IsReport(const std::string& path) {
  constexpr absl::string_view kStart = "ran=";
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  char start[kStart.size()];
  return file && ::read(file.get(), start, sizeof(start)) == static_cast<ssize_t>(sizeof(start)) &&
         absl::string_view(start, sizeof(start)) == kStart;
}

// The options of a report in a command line that the parser rejects. The parser stops at the first mistake.
class RejectedOptions {
 public:
  // `words`: those without the program's name.
  RejectedOptions(Command app, std::span<const char* const> words) {
    const auto end = std::find(words.begin(), words.end(), absl::string_view("--"));
    separated_ = end != words.end();
    // Whether the last option is unknown, and its value may follow.
    bool unknown = false;
    for (auto at = words.begin(); at != end; ++at) {
      const std::string word = *at;
      if (!absl::StartsWith(word, "-")) {
        if (!TakeWord(word, unknown)) return;
        unknown = false;
        continue;
      }
      const size_t equals = word.find('=');
      const std::string name = word.substr(0, equals);
      const bool is_reports = name == kNotRunOption || name == kFileOption || name == kFdOption;
      const bool joined = equals != std::string::npos;
      unknown = !joined && !is_reports && !app.TakesValue(name).has_value();
      if (joined) {
        TakeOption(name, word.substr(equals + 1));
      } else if ((is_reports || app.TakesValue(name).value_or(false)) && at + 1 != end) {
        TakeOption(name, *++at);
      }
    }
  }

  int not_run_code() const { return not_run_code_; }
  const std::set<std::string>& files() const { return files_; }
  const std::set<int>& fds() const { return fds_; }

 private:
  // Returns false at the first word of a program.
  bool TakeWord(const std::string& word, bool after_unknown_option) {
    if (!runs_program_ && (word == "run" || word == "ctest-run")) {
      runs_program_ = true;
    } else if (runs_program_ && !after_unknown_option) {
      return false;
    } else if (runs_program_ || has_word_) {
      // Either an unknown option's value, or a program.
      certain_ = separated_;
    }
    has_word_ = true;
    return true;
  }

  void TakeOption(const std::string& name, const std::string& value) {
    if (name == kNotRunOption && certain_) {
      if (const int code = CodeIn(value); code != 0) not_run_code_ = code;
    } else if (name == kFileOption) {
      const bool blank = absl::StripAsciiWhitespace(value).empty();
      if (!blank && (certain_ || IsReport(value))) files_.insert(value);
    } else if (name == kFdOption && certain_) {
      if (int fd = -1; absl::SimpleAtoi(value, &fd) && fd >= 0) fds_.insert(fd);
    }
  }

  // Whether "--" separates the words of a program.
  bool separated_ = false;
  bool has_word_ = false;
  bool runs_program_ = false;
  // Whether the options are surely those of `berth`. If not, only reports of earlier runs are replaced.
  bool certain_ = true;
  int not_run_code_ = 0;
  std::set<std::string> files_;
  std::set<int> fds_;
};

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
      kFileOption, &options->status_file,
      "Write the outcome to this file, as lines of NAME=VALUE: ran=yes, ran=no or ran=exec; code= or signal= "
      "of the command; reason= if it did not run; permit=held or permit=ended; exit=");
  verb.AddOption(kFdOption, &options->status_fd,
                 "Write the same lines to this open fd, which the command does not inherit")
      .Within(0, std::numeric_limits<int>::max())
      .Excludes(file);
}

int ReportUsageError(Command app, std::span<const char* const> words) {
  const RejectedOptions rejected(app, words);
  std::vector<RunReportOptions> outputs;
  for (const std::string& file : rejected.files()) outputs.push_back({.status_file = file});
  for (const int fd : rejected.fds()) outputs.push_back({.status_fd = fd});
  for (RunReportOptions& output : outputs) {
    output.not_run_code = rejected.not_run_code();
    RunReport report(output);
    if (const absl::Status opened = report.Open(); !opened.ok()) Complain(opened.message());
    report.NotRun({.code = kUsage, .not_run = "usage"});
  }
  return rejected.not_run_code() != 0 ? rejected.not_run_code() : kUsage;
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
  std::string failure;
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
      failure = std::string(OsError("write", errno).message());
      break;
    }
    if (SteadyNow() - last > kReaderPatience) {
      failure = absl::StrCat("its reader has read nothing for ", absl::FormatDuration(kReaderPatience));
      break;
    }
    absl::SleepFor(kPause);
  }
  if (!failure.empty()) {
    Complain(absl::StrCat("cannot write the status: ", failure));
    // A part of the lines could name another outcome: "code=1" of "code=12".
    file_.reset();
  }
  if (file_.has_value()) {
    if (const absl::Status placed = file_->Commit(); !placed.ok()) Complain(placed.message());
    file_.reset();
  }
}

}  // namespace berth::cli
