#include "daemon/base/process_origin.h"

#include <limits.h>
#include <unistd.h>

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/os/proc_file.h"

namespace berth {
namespace {

// Index of the start time in /proc/<pid>/stat, after the command's name, which may contain any characters.
constexpr size_t kStartTime = 19;

std::string ReadProc(int32_t pid, const char* name) {
  return ReadProcFile(absl::StrCat("/proc/", pid, "/", name)).value_or("");
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
