#include "daemon/base/stderr_log.h"

#include <stdlib.h>
#include <unistd.h>

#include <cstddef>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/terminal_text.h"

namespace berth {
namespace {

// "12", or "12+" if the reader has taken the first part of a line.
constexpr char kBacklog[] = "BERTH_LOG_BACKLOG";

}  // namespace

LineOutput& StderrLog() {
  static auto* const log = new LineOutput(STDERR_FILENO, "berthd");
  return *log;
}

void LogLine(absl::string_view text) { StderrLog().Write(absl::StrCat(ToTerminalWord(text), "\n")); }

void HandLogOn() {
  const LineOutput::Backlog backlog = StderrLog().backlog();
  if (backlog.lines > 0) ::setenv(kBacklog, absl::StrCat(backlog.lines, backlog.in_line ? "+" : "").c_str(), 1);
}

void ContinueLog() {
  const char* const set = ::getenv(kBacklog);
  if (set == nullptr) return;
  LineOutput::Backlog backlog = {.in_line = absl::EndsWith(set, "+")};
  if (absl::SimpleAtoi(absl::StripSuffix(set, "+"), &backlog.lines)) StderrLog().Continue(backlog);
  ::unsetenv(kBacklog);
}

void KeepLog() { ::unsetenv(kBacklog); }

}  // namespace berth
