#include "client/sdk/transport/socket_target.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace berth::internal {
namespace {

UniqueFd OpenFolder(const std::string& folder) {
  return UniqueFd(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
}

std::string Encode(absl::string_view path) {
  // Two slashes would begin the authority of a URI.
  while (absl::StartsWith(path, "//")) path.remove_prefix(1);
  std::string encoded;
  for (const char c : path) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("/._~-", c)) {
      encoded += c;
    } else {
      absl::StrAppendFormat(&encoded, "%%%02X", static_cast<uint8_t>(c));
    }
  }
  return encoded;
}

}  // namespace

SocketTarget::SocketTarget(const std::string& path) : uri_(absl::StrCat("unix:", Encode(path))) {
  if (!absl::StrContains(path, ',')) return;
  const size_t name = path.rfind('/');
  folder_ = path.substr(0, name);
  fd_ = OpenFolder(folder_);
  // Without the folder, the fd only has the number for a later one.
  if (!fd_) fd_.reset(::open("/dev/null", O_PATH | O_CLOEXEC));
  uri_ = absl::StrCat("unix:/proc/self/fd/", fd_.get(), path.substr(name));
}

void SocketTarget::Refresh() const {
  if (!fd_) return;
  const UniqueFd now = OpenFolder(folder_);
  if (now) ::dup3(now.get(), fd_.get(), O_CLOEXEC);
}

}  // namespace berth::internal
