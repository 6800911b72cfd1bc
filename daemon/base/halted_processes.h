// HaltedProcesses: one look at processes, some of which do not run: stopped by a signal or a debugger, or frozen with
// their cgroup. /proc shows a frozen process as one that sleeps, so the look reads the states of the cgroups.
//
//   HaltedProcesses look;
//   if (look.Has(pid)) ...

#ifndef DAEMON_BASE_HALTED_PROCESSES_H_
#define DAEMON_BASE_HALTED_PROCESSES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace berth {

// A mounted hierarchy of cgroups that can be frozen.
struct FreezerMount {
  // The unified hierarchy, or else the freezer's own (cgroup v1).
  bool unified = false;
  // The cgroup that is mounted, as this process sees it, and where.
  std::string root;
  std::string folder;
};

// Returns the hierarchies in a text like that of /proc/self/mountinfo.
std::vector<FreezerMount> FindFreezers(absl::string_view mountinfo);
// Returns the files that report the freezer's state of the cgroups in a text like that of /proc/PID/cgroup. Omits
// cgroups outside of this process's cgroup namespace, or of what is mounted.
std::vector<std::string> FreezerFilesOf(absl::string_view cgroups, const std::vector<FreezerMount>& freezers);
// Whether a file's text reports a cgroup that is frozen: itself, or one above it.
bool ReportsFrozen(absl::string_view text);

// Thread-compatible. Reads the state of each cgroup once.
class HaltedProcesses {
 public:
  HaltedProcesses();
  // Returns whether the process is stopped, or frozen as far as this process sees its cgroup. False for a process that
  // /proc does not show. The answer may be out of date when it arrives.
  bool Has(int32_t pid);

 private:
  bool IsFrozen(int32_t pid);

  const std::vector<FreezerMount>& freezers_;
  // By the text of /proc/PID/cgroup.
  absl::flat_hash_map<std::string, bool> frozen_;
};

}  // namespace berth

#endif  // DAEMON_BASE_HALTED_PROCESSES_H_
