#include <berth/bytes.h>

#include <array>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace berth {
namespace {

struct Unit {
  absl::string_view name;
  int shift;
};
constexpr std::array<Unit, 5> kUnits = {{{"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}, {"B", 0}}};

// A unit suffix, matched without regard to case, and its bytes.
struct Suffix {
  absl::string_view name;
  uint64_t bytes;
};
constexpr std::array<Suffix, 13> kSuffixes = {{{"TiB", uint64_t{1} << 40},
                                               {"GiB", uint64_t{1} << 30},
                                               {"MiB", uint64_t{1} << 20},
                                               {"KiB", uint64_t{1} << 10},
                                               {"TB", 1'000'000'000'000},
                                               {"GB", 1'000'000'000},
                                               {"MB", 1'000'000},
                                               {"KB", 1'000},
                                               {"B", 1},
                                               {"T", uint64_t{1} << 40},
                                               {"G", uint64_t{1} << 30},
                                               {"M", uint64_t{1} << 20},
                                               {"K", uint64_t{1} << 10}}};

std::string WithThousands(uint64_t n) {
  std::string digits = absl::StrCat(n);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) digits.insert(static_cast<size_t>(at), 1, ',');
  return digits;
}

}  // namespace

absl::StatusOr<Bytes> ParseBytes(absl::string_view text) {
  const absl::Status bad = absl::InvalidArgumentError(
      absl::StrCat("\"", text.substr(0, 64),
                   "\" is not an amount of bytes such as 4096, 64KiB, 1.5GiB, 20G (GiB), 10GB (10^9 each)"));
  absl::string_view number = absl::StripAsciiWhitespace(text);
  uint64_t unit = 1;
  for (const Suffix& suffix : kSuffixes) {
    if (!absl::EndsWithIgnoreCase(number, suffix.name)) continue;
    number.remove_suffix(suffix.name.size());
    number = absl::StripTrailingAsciiWhitespace(number);
    unit = suffix.bytes;
    break;
  }
  if (number.empty() || !absl::ascii_isdigit(number[0])) return bad;
  // Rejects exponents and hexadecimal digits.
  if (number.find_first_not_of("0123456789.") != absl::string_view::npos) return bad;
  if (uint64_t whole; absl::SimpleAtoi(number, &whole)) {
    if (whole > UINT64_MAX / unit) return bad;
    return Bytes(whole * unit);
  }
  double fraction;
  if (!absl::SimpleAtod(number, &fraction) || !std::isfinite(fraction)) return bad;
  const double count = fraction * static_cast<double>(unit);
  if (count >= 0x1p63) return bad;
  return Bytes(static_cast<uint64_t>(std::llround(count)));
}

std::string FormatBytes(Bytes bytes) {
  const uint64_t n = bytes.count();
  for (const Unit& unit : kUnits) {
    if (unit.shift == 0 || (n >> unit.shift) == 0) continue;
    const uint64_t one = uint64_t{1} << unit.shift;
    if (n % one == 0) return absl::StrCat(WithThousands(n / one), " ", unit.name);
    // Below a MiB the exact number is as short.
    if (unit.shift < 20) break;
    return absl::StrFormat("%.1f %s", static_cast<double>(n) / static_cast<double>(one), unit.name);
  }
  return absl::StrCat(WithThousands(n), " B");
}

}  // namespace berth
