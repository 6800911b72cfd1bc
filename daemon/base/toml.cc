#include "daemon/base/toml.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace berth {
namespace {

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
  return Try([&] { return toml::parse(text); }, name);
}

}  // namespace berth
