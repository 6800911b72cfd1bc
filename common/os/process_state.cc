#include "common/os/process_state.h"

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/os/proc_file.h"

namespace berth {

char ReadState(int32_t pid) {
  if (pid <= 0) return 0;
  const absl::StatusOr<std::string> line = ReadProcFile(absl::StrCat("/proc/", pid, "/stat"));
  if (!line.ok()) return 0;
  // The state follows the command's name, which is in parentheses and may contain any character.
  const size_t name_end = line->rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= line->size()) return 0;
  return (*line)[name_end + 2];
}

bool IsStopped(int32_t pid) {
  const char state = ReadState(pid);
  return state == 'T' || state == 't';
}

}  // namespace berth
