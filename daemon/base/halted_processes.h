// HaltedProcesses: one look at processes, some of which do not run: stopped by a signal or a debugger, or frozen with
// their cgroup. /proc shows a frozen process as one that sleeps, so the look reads the states of the cgroups. Where
// this process cannot see a cgroup, the look reads in which function of the kernel the process waits.
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

struct FreezerFiles {
  std::vector<std::string> paths;
  // Whether a freezer's cgroup has no file: it is outside of what is mounted here, as in a container.
  bool incomplete = false;
};

// Returns the files that report the freezer's state of the cgroups in a text like that of /proc/PID/cgroup.
FreezerFiles FreezerFilesOf(absl::string_view cgroups, const std::vector<FreezerMount>& freezers);
// Whether a file's text reports a cgroup that is frozen: itself, or one above it.
bool ReportsFrozen(absl::string_view text);

// Thread-compatible. Reads the state of each cgroup once.
class HaltedProcesses {
 public:
  HaltedProcesses();
  // Returns whether the process is stopped or frozen. False for a process that /proc does not show. The answer may be
  // out of date when it arrives.
  bool Has(int32_t pid);

 private:
  struct State {
    bool frozen = false;
    // As FreezerFiles.
    bool incomplete = false;
  };

  bool IsFrozen(int32_t pid);

  const std::vector<FreezerMount>& freezers_;
  // By the text of /proc/PID/cgroup.
  absl::flat_hash_map<std::string, State> states_;
};

}  // namespace berth

#endif  // DAEMON_BASE_HALTED_PROCESSES_H_
