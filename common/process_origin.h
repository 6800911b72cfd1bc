// ProcessOrigin: what a process was when it was looked at, for those who ask later who it was.

#ifndef COMMON_PROCESS_ORIGIN_H_
#define COMMON_PROCESS_ORIGIN_H_

#include <cstdint>
#include <string>

namespace berth {

struct ProcessOrigin {
  // In clock ticks since the machine started: with the pid it names one process of this boot. 0 if it cannot be read.
  uint64_t started = 0;
  // Its path in the unified hierarchy, and its program's file. Empty if they cannot be read.
  std::string cgroup;
  std::string executable;
};

// Reads /proc. Who holds a pidfd of `pid` and finds it alive afterwards has read of that process and no other.
ProcessOrigin ReadOrigin(int32_t pid);

}  // namespace berth

#endif  // COMMON_PROCESS_ORIGIN_H_
