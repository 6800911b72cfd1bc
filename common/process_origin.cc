#include "common/process_origin.h"

#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/unique_fd.h"

namespace berth {
namespace {

// Of /proc/<pid>/stat: the field after the command's name, which may have any characters in it.
constexpr size_t kStartTime = 19;

std::string ReadProc(int32_t pid, const char* name) {
  const UniqueFd fd(::open(absl::StrCat("/proc/", pid, "/", name).c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return "";
  char buffer[4096];
  const ssize_t got = ::read(fd.get(), buffer, sizeof(buffer));
  return got > 0 ? std::string(buffer, static_cast<size_t>(got)) : "";
}

}  // namespace

ProcessOrigin ReadOrigin(int32_t pid) {
  ProcessOrigin origin;
  if (pid <= 0) return origin;
  const std::string stat = ReadProc(pid, "stat");
  if (const size_t end = stat.rfind(") "); end != std::string::npos) {
    const std::vector<std::string> fields = absl::StrSplit(stat.substr(end + 2), ' ');
    if (fields.size() <= kStartTime || !absl::SimpleAtoi(fields[kStartTime], &origin.started)) origin.started = 0;
  }
  for (absl::string_view line : absl::StrSplit(ReadProc(pid, "cgroup"), '\n')) {
    if (absl::ConsumePrefix(&line, "0::")) origin.cgroup = std::string(line);
  }
  char path[PATH_MAX];
  const ssize_t size = ::readlink(absl::StrCat("/proc/", pid, "/exe").c_str(), path, sizeof(path));
  if (size > 0) origin.executable.assign(path, static_cast<size_t>(size));
  return origin;
}

}  // namespace berth
