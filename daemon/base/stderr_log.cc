#include "daemon/base/stderr_log.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/terminal_text.h"

namespace berth {

LineOutput& StderrLog() {
  static auto* const log = new LineOutput(STDERR_FILENO, "berthd");
  return *log;
}

void LogLine(absl::string_view text) { StderrLog().Write(absl::StrCat(ToTerminalWord(text), "\n")); }

}  // namespace berth
