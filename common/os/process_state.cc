#include "common/os/process_state.h"

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/os/proc_file.h"
#include "common/os/threads.h"

namespace berth {
namespace {

// Returns the state in a stat file of /proc; 0 if /proc does not show it.
char StateIn(const std::string& stat_file) {
  const absl::StatusOr<std::string> line = ReadProcFile(stat_file);
  if (!line.ok()) return 0;
  // The state follows the command's name, which is in parentheses and may contain any character.
  const size_t name_end = line->rfind(')');
  return name_end == std::string::npos || name_end + 2 >= line->size() ? 0 : (*line)[name_end + 2];
}

bool IsStop(char state) { return state == 'T' || state == 't'; }

}  // namespace

char ReadState(int32_t pid) { return pid <= 0 ? 0 : StateIn(absl::StrCat("/proc/", pid, "/stat")); }

bool IsStopped(int32_t pid) {
  const char state = ReadState(pid);
  if (state != 'Z') return IsStop(state);
  // The main thread has ended; the other threads may run or be stopped.
  const absl::StatusOr<std::vector<int32_t>> threads = OtherThreadsOf(pid);
  if (!threads.ok()) return false;
  for (const int32_t thread : *threads) {
    const char others = StateIn(absl::StrCat("/proc/", pid, "/task/", thread, "/stat"));
    if (others != 'Z' && others != 0) return IsStop(others);
  }
  return false;
}

}  // namespace berth
