#include "daemon/base/named_fd.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/numbers.h"

namespace berth {
namespace {

// Maximum symbolic links of a path to an fd: a link of the operator's, /dev/stderr, and the system's own.
constexpr int kMaxLinks = 8;

}  // namespace

std::optional<int> FindNamedFd(const std::string& path) {
  // Names of the system, also without /proc.
  if (path == "/dev/stdout") return STDOUT_FILENO;
  if (path == "/dev/stderr") return STDERR_FILENO;
  std::error_code error;
  const std::filesystem::path fds[] = {std::filesystem::canonical("/proc/self/fd", error),
                                       std::filesystem::canonical("/proc/thread-self/fd", error)};
  std::filesystem::path at = path;
  for (int links = 0; !error && links < kMaxLinks; ++links) {
    const std::filesystem::path folder = std::filesystem::canonical(at.parent_path(), error);
    if (error) break;
    const std::string name = at.filename();
    if (folder == fds[0] || folder == fds[1]) {
      int fd = -1;
      return absl::SimpleAtoi(name, &fd) ? std::optional<int>(fd) : std::nullopt;
    }
    // The caller judges the links of other users.
    struct stat entry;
    at = folder / name;
    if (::lstat(at.c_str(), &entry) < 0 || !S_ISLNK(entry.st_mode)) break;
    if (entry.st_uid != 0 && entry.st_uid != ::geteuid()) break;
    at = folder / std::filesystem::read_symlink(at, error);
  }
  return std::nullopt;
}

}  // namespace berth
