#include "client/sdk/transport/environment.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"
#include "common/wire/session_credentials.h"

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

absl::StatusOr<SessionName> ParseSessionName(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ',');
  SessionName name;
  uint64_t session = 0;
  const bool earlier = parts.size() == 2 || parts.size() == 3;
  bool valid = (earlier || parts.size() == 6) && absl::SimpleAtoi(parts[0], &name.lifeline) && name.lifeline >= 0 &&
               absl::SimpleAtoi(parts[1], &name.session_credentials) && name.session_credentials >= 0;
  if (valid && !earlier) {
    valid = absl::SimpleAtoi(parts[2], &name.opener) && name.opener > 0 &&
            absl::SimpleAtoi(parts[3], &name.opener_start) &&
            absl::SimpleAtoi(parts[4], &name.pid_namespace) && absl::SimpleAtoi(parts[5], &session) &&
            session != 0;
  }
  if (!valid) {
    return absl::InvalidArgumentError(absl::StrCat(
        kSessionVariable, "=\"", text.substr(0, 128),
        "\" is not <lifeline fd>,<credentials fd>,<pid>,<start time>,<PID namespace>,<session>: unset it"));
  }
  name.session = SessionId(session);
  return name;
}

std::string FormatSessionName(const SessionName& name) {
  const std::string fds = absl::StrCat(name.lifeline, ",", name.session_credentials);
  if (!name.session) return fds;
  return absl::StrCat(fds, ",", name.opener, ",", name.opener_start, ",", name.pid_namespace, ",",
                      name.session.value());
}

absl::StatusOr<std::optional<SessionName>> SessionNameFromEnvironment() {
  const std::string text = Variable(kSessionVariable);
  if (text.empty()) return std::nullopt;
  BERTH_ASSIGN_OR_RETURN(SessionName name, ParseSessionName(text));
  return name;
}

uint64_t PidNamespace() {
  struct stat file = {};
  return ::stat("/proc/self/ns/pid", &file) == 0 ? file.st_ino : 0;
}

}  // namespace berth::internal
