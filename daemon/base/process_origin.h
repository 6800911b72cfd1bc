// ProcessOrigin: facts that identify a process, captured while it lives, for records that outlast it.

#ifndef DAEMON_BASE_PROCESS_ORIGIN_H_
#define DAEMON_BASE_PROCESS_ORIGIN_H_

#include <cstdint>
#include <string>

namespace berth {

struct ProcessOrigin {
  // Start time in clock ticks since boot; with the pid it identifies one process of this boot. 0 if unreadable.
  uint64_t started = 0;
  // Path in the unified hierarchy, and the program's file. Empty if unreadable.
  std::string cgroup;
  std::string executable;
};

// Reads /proc. If the caller holds a pidfd of `pid` and finds the process alive afterwards, the result is of that
// process.
ProcessOrigin ReadOrigin(int32_t pid);

}  // namespace berth

#endif  // DAEMON_BASE_PROCESS_ORIGIN_H_
