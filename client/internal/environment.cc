#include "client/internal/environment.h"

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/session_capsule.h"
#include "common/status_macros.h"

namespace berth::internal {
namespace {

constexpr char kSystemFolder[] = "/run/berth";

std::string Variable(const char* name) {
  const char* value = ::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::string FolderFromEnvironment() { return Variable(kFolderVariable); }

std::string DefaultFolder() {
  if (std::string folder = FolderFromEnvironment(); !folder.empty()) return folder;
  const std::string runtime = Variable("XDG_RUNTIME_DIR");
  const bool system = ::access(absl::StrCat(kSystemFolder, "/berthd.sock").c_str(), F_OK) == 0;
  return system || runtime.empty() ? kSystemFolder : absl::StrCat(runtime, "/berth");
}

std::string Absolute(const std::string& folder) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(folder, error);
  return error ? folder : absolute.string();
}

absl::StatusOr<InheritedFds> ParseInheritedFds(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ',');
  InheritedFds fds;
  if (parts.size() < 2 || parts.size() > 3 || !absl::SimpleAtoi(parts[0], &fds.lifeline) ||
      fds.lifeline < 0 || !absl::SimpleAtoi(parts[1], &fds.capsule) || fds.capsule < 0 ||
      (parts.size() == 3 && (!absl::SimpleAtoi(parts[2], &fds.keeper) || fds.keeper <= 0))) {
    return absl::InvalidArgumentError(absl::StrCat(kSessionVariable, "=\"", text.substr(0, 64),
                                                   "\" is not <lifeline fd>,<capsule fd>[,<keeper's pid>]"));
  }
  return fds;
}

std::string FormatInheritedFds(const InheritedFds& fds) {
  const std::string text = absl::StrCat(fds.lifeline, ",", fds.capsule);
  return fds.keeper == 0 ? text : absl::StrCat(text, ",", fds.keeper);
}

absl::StatusOr<std::optional<InheritedFds>> InheritedFdsFromEnvironment() {
  const std::string text = Variable(kSessionVariable);
  if (text.empty()) return std::nullopt;
  BERTH_ASSIGN_OR_RETURN(InheritedFds fds, ParseInheritedFds(text));
  return fds;
}

}  // namespace berth::internal
