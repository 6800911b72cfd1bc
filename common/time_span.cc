#include "common/time_span.h"

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace berth {
namespace {

// Returns a negative duration for invalid text.
absl::Duration Read(absl::string_view text) {
  constexpr absl::Duration kNone = -absl::InfiniteDuration();
  // abseil reads hexadecimal numbers, too.
  if (text.find_first_of("xX") != absl::string_view::npos) return kNone;
  double number = 0;
  if (absl::SimpleAtod(text, &number)) return absl::Seconds(number);
  absl::Duration days;
  if (const size_t end = text.find('d'); end != absl::string_view::npos) {
    if (!absl::SimpleAtod(text.substr(0, end), &number) || !(number >= 0)) return kNone;
    days = number * absl::Hours(24);
    text.remove_prefix(end + 1);
    if (text.empty()) return days;
  }
  absl::Duration rest;
  if (!absl::ParseDuration(text, &rest) || rest < absl::ZeroDuration()) return kNone;
  return days + rest;
}

}  // namespace

absl::StatusOr<absl::Duration> ParseTimeSpan(absl::string_view text) {
  const absl::Duration span = Read(text);
  if (span < absl::ZeroDuration() || span == absl::InfiniteDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text.substr(0, 64), "\" is not a time such as 90, 90s, 1m30s, 2d"));
  }
  return span;
}

}  // namespace berth
