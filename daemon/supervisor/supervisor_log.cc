#include "daemon/supervisor/supervisor_log.h"

#include <stdarg.h>
#include <stdio.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "daemon/base/stderr_log.h"

namespace berth {

MonotonicTime Now() { return std::chrono::steady_clock::now(); }

void Log(const char* format, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof(line), format, arguments);
  va_end(arguments);
  LogLine(absl::StrCat("berthd: ", line));
}

int PollTimeout(MonotonicTime deadline) {
  constexpr std::chrono::milliseconds kLongest(60'000);
  const auto left = deadline - Now();
  if (left >= kLongest) return static_cast<int>(kLongest.count());
  return static_cast<int>(std::max<int64_t>(std::chrono::ceil<std::chrono::milliseconds>(left).count(), 0));
}

}  // namespace berth
