// SteadyNow: the monotonic time. Deadlines of this process's own waits use it. Such times mean nothing to people and
// other machines, and are never compared with the wall clock's.

#ifndef COMMON_STEADY_CLOCK_H_
#define COMMON_STEADY_CLOCK_H_

#include <time.h>

#include "absl/time/time.h"

namespace berth {

inline absl::Time SteadyNow() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return absl::TimeFromTimespec(now);
}

}  // namespace berth

#endif  // COMMON_STEADY_CLOCK_H_
