#include "daemon/base/toml.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"

namespace berth {
namespace {

// The library makes a table for each level of a key, and recurses once for each. This bounds the levels far below the
// stack's size, and far above those of any setting.
constexpr int kMaxPeriods = 128;

absl::Status CheckLevels(const std::string& text, const std::string& name) {
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (std::count(line.begin(), line.end(), '.') <= kMaxPeriods) continue;
    if (absl::StartsWith(absl::StripLeadingAsciiWhitespace(line), "#")) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, ":", number, ": more than ", kMaxPeriods, " periods in a line: no key has so many levels"));
  }
  return absl::OkStatus();
}

template <typename Parse>
absl::StatusOr<toml::table> Try(const Parse& parse, const std::string& name) {
  try {
    return parse();
  } catch (const toml::parse_error& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ":", error.source().begin.line, ": ", std::string(error.description())));
  } catch (const std::logic_error& error) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", error.what()));
  }
}

}  // namespace

absl::StatusOr<toml::table> ReadToml(const std::string& path) {
  return Try([&] { return toml::parse_file(path); }, path);
}

absl::StatusOr<toml::table> ParseToml(const std::string& text, const std::string& name) {
  BERTH_RETURN_IF_ERROR(CheckLevels(text, name));
  return Try([&] { return toml::parse(text); }, name);
}

}  // namespace berth
