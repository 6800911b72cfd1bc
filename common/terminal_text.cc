#include "common/terminal_text.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/code_points.h"

namespace berth {
namespace {

// Calls `write_out` with each unprintable code point that is not in `allowed`, and with each invalid byte.
template <typename WriteOut>
std::string Replace(absl::string_view text, absl::string_view allowed, WriteOut write_out) {
  std::string shown;
  while (!text.empty()) {
    const CodePoint point = FirstCodePoint(text);
    const absl::string_view sequence = text.substr(0, point.bytes == 0 ? 1 : point.bytes);
    if (point.bytes == 0) {
      absl::StrAppendFormat(&shown, "\\x%02x", static_cast<unsigned char>(sequence[0]));
    } else if (IsUnprintable(point.value) && !absl::StrContains(allowed, sequence)) {
      absl::StrAppend(&shown, write_out(point.value));
    } else {
      absl::StrAppend(&shown, sequence);
    }
    text.remove_prefix(sequence.size());
  }
  return shown;
}

std::string Braced(uint32_t point) { return absl::StrFormat("\\u{%x}", point); }

}  // namespace

std::string ToTerminal(absl::string_view text) { return Replace(text, "\n\t", Braced); }

std::string ToTerminalWord(absl::string_view text) { return Replace(text, "", Braced); }

std::string ToTerminalJson(absl::string_view json) {
  return Replace(json, "\n\t\r", [](uint32_t point) {
    if (point < 0x10000) return absl::StrFormat("\\u%04x", point);
    const uint32_t rest = point - 0x10000;
    return absl::StrFormat("\\u%04x\\u%04x", 0xd800 + (rest >> 10), 0xdc00 + (rest & 0x3ff));
  });
}

}  // namespace berth
