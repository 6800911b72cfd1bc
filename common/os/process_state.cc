#include "common/os/process_state.h"

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/os/proc_file.h"

namespace berth {

bool IsStopped(int32_t pid) {
  if (pid <= 0) return false;
  const absl::StatusOr<std::string> line = ReadProcFile(absl::StrCat("/proc/", pid, "/stat"));
  if (!line.ok()) return false;
  // The state follows the command's name, which is in parentheses and may contain any character.
  const size_t name_end = line->rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= line->size()) return false;
  const char state = (*line)[name_end + 2];
  return state == 'T' || state == 't';
}

}  // namespace berth
