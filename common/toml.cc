#include "common/toml.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace berth {

absl::StatusOr<toml::table> ReadToml(const std::string& path) {
  try {
    return toml::parse_file(path);
  } catch (const toml::parse_error& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ":", error.source().begin.line, ": ", std::string(error.description())));
  } catch (const std::logic_error& error) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", error.what()));
  }
}

}  // namespace berth
