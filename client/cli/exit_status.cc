#include "client/cli/exit_status.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <string>

#include <berth/error.h>
#include <berth/session_options.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/line_output.h"
#include "common/os/os_error.h"
#include "common/terminal_text.h"

namespace berth::cli {
namespace {

LineOutput& Stderr() {
  // Never destroyed: a thread of the SDK may still print.
  static auto* const output = new LineOutput(STDERR_FILENO, "berth");
  return *output;
}

// Whether the last report is that the daemon does not answer.
std::atomic<bool> silent = false;

// errno of the first failed write to standard output, or 0.
std::atomic<int> output_error = 0;

bool Wrote(bool written) {
  int none = 0;
  if (!written) output_error.compare_exchange_strong(none, errno);
  return written;
}

// Returns the way out of a refusal that found nothing of this id or name: the command that lists what exists. Empty if
// the text names one, or for other refusals.
std::string ListingOf(const absl::Status& status) {
  struct Listing {
    absl::string_view kind;
    absl::string_view command;
  };
  static constexpr Listing kListings[] = {
      {"block", "blocks"}, {"device", "devices"},           {"permit", "permits"},  {"plan", "plans"},
      {"published block", "blocks"}, {"reservation", "reservations"}, {"session", "sessions"}, {"waiter", "permits"}};
  const std::optional<ErrorDetails> details = GetErrorDetails(status);
  if (!details.has_value() || details->reason != Reason::kNotFound) return "";
  if (absl::StrContains(status.message(), "`berth ")) return "";
  const auto kind = details->metadata.find("kind");
  if (kind == details->metadata.end()) return "";
  for (const Listing& listing : kListings) {
    if (listing.kind == kind->second) return absl::StrCat(": `berth ", listing.command, "` lists those that exist");
  }
  return "";
}

}  // namespace

bool Print(absl::string_view text) { return Wrote(::fputs(ToTerminal(text).c_str(), stdout) >= 0); }

bool FlushOutput() { return Wrote(::fflush(stdout) == 0); }

void PrintError(absl::string_view lines) { Stderr().Write(ToTerminal(lines)); }

void Complain(absl::string_view text) { Stderr().Write(absl::StrCat("berth: ", ToTerminalWord(text), "\n")); }

void ComplainOfSilence(const std::string& socket) {
  static std::atomic<bool> complained = false;
  if (complained.exchange(true)) return;
  silent = true;
  Complain(absl::StrCat("waiting for the daemon, which has not answered on ", socket, " for ",
                        absl::FormatDuration(SessionOptions::kSilence)));
}

void ComplainOfAnswer() {
  if (silent.exchange(false)) Complain("the daemon answers again");
}

void ReserveStandardFds() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    // open() returns the lowest free number, which is `fd`: all lower numbers are open.
    if (::open("/dev/null", (fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) | O_CLOEXEC) >= 0) continue;
    [[maybe_unused]] const int opened = ::open("/", O_PATH | O_CLOEXEC);
  }
}

absl::Status LocalError(absl::string_view what, int error) {
  absl::Status status = OsError(what, error);
  if (!absl::IsPermissionDenied(status) && !absl::IsUnavailable(status)) return status;
  return absl::FailedPreconditionError(status.message());
}

ExitStatus Report(const absl::Status& status) {
  if (status.ok()) return {};
  Complain(absl::StrCat(status.message(), ListingOf(status)));
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return {.code = kUnreachable, .not_run = "unreachable"};
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
      return {.code = kUnreachable, .not_run = "denied"};
    case absl::StatusCode::kResourceExhausted:
      // A refusal of the daemon has a reason. Without a reason this process itself lacks a resource.
      return {.code = GetErrorDetails(status).has_value() ? kFailed : kRunFailed, .not_run = "failed"};
    default:
      return {.code = kFailed, .not_run = "failed"};
  }
}

int Exit(const ExitStatus& status) {
  Stderr().Flush();
  if (status.signal == 0) {
    // Output that could not be written is a failure.
    const bool shown = FlushOutput() && ::ferror(stdout) == 0;
    if (shown || status.code != kOk) return status.code;
    Complain(OsError("cannot write standard output", output_error != 0 ? output_error.load() : EIO).message());
    return kFailed;
  }
  // The command has dumped a core if configured; a core of this process would add nothing.
  const rlimit none = {0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  ::signal(status.signal, SIG_DFL);
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, status.signal);
  ::raise(status.signal);
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  return 128 + status.signal;
}

void ExitNow(const ExitStatus& status) { ::_exit(Exit(status)); }

}  // namespace berth::cli
