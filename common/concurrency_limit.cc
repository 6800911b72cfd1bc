#include "common/concurrency_limit.h"

#include <stdlib.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"

namespace berth {

uint64_t ParseConcurrency(absl::string_view text) {
  uint64_t limit;
  if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(text), &limit)) return kDefaultConcurrency;
  return std::max<uint64_t>(limit, 1);
}

std::optional<uint64_t> ConcurrencyFromEnvironment() {
  for (const char* name : {kConcurrencyVariable, kConcurrencyAlias}) {
    if (const char* text = ::getenv(name)) return ParseConcurrency(text);
  }
  return std::nullopt;
}

}  // namespace berth
