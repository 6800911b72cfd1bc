// BERTH_INVARIANT: stops the process when the core's internal accounting is inconsistent. Unreachable from input:
// errors that clients, workers or operators can cause are statuses.

#ifndef DAEMON_CORE_TYPES_INVARIANT_H_
#define DAEMON_CORE_TYPES_INVARIANT_H_

#include <cstdio>
#include <cstdlib>

// Aborts with the source location and the violated condition unless `condition` holds. Active in optimised builds, too.
#define BERTH_INVARIANT(condition)                                                           \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      std::fprintf(stderr, "%s:%d: invariant broken: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                          \
    }                                                                                        \
  } while (false)

#endif  // DAEMON_CORE_TYPES_INVARIANT_H_
