#include "daemon/base/toml.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/os/file_io.h"
#include "common/os/os_error.h"
#include "common/os/unique_fd.h"
#include "common/status_macros.h"

namespace berth {
namespace {

// The library makes a table for each level of a key, and recurses once for each. This bounds the levels far below the
// stack's size, and far above those of any setting.
constexpr int kMaxPeriods = 128;
constexpr size_t kMaxFileMib = 4;

absl::Status Unreadable(const absl::Status& why) { return absl::InvalidArgumentError(why.message()); }

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  // Without O_NONBLOCK, the open of a FIFO would wait for its writer.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  // ENXIO: a socket, or a device that is not there.
  if (!file && errno != ENXIO) return Unreadable(OsError(path, errno));
  struct stat info = {};
  if (file && ::fstat(file.get(), &info) < 0) return Unreadable(OsError(path, errno));
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  // A file of /proc reports no size, and may be endless.
  absl::StatusOr<std::string> text = ReadToEnd(file.get(), path, (kMaxFileMib << 20) + 1);
  if (!text.ok()) return Unreadable(text.status());
  if (text->size() > kMaxFileMib << 20) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has more than ", kMaxFileMib, " MiB, the limit"));
  }
  return text;
}

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
  BERTH_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParseToml(text, path);
}

absl::StatusOr<toml::table> ParseToml(const std::string& text, const std::string& name) {
  BERTH_RETURN_IF_ERROR(CheckLevels(text, name));
  return Try([&] { return toml::parse(text); }, name);
}

}  // namespace berth
