// BERTH_INVARIANT: stops the process where the core's own books contradict themselves. Never reachable from
// input: what a client, a worker or an operator can cause is a status.

#ifndef DAEMON_CORE_INVARIANT_H_
#define DAEMON_CORE_INVARIANT_H_

#include <cstdio>
#include <cstdlib>

// Aborts, naming the place and the broken condition, unless `condition` holds. Also in optimised builds.
#define BERTH_INVARIANT(condition)                                                           \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      std::fprintf(stderr, "%s:%d: invariant broken: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                          \
    }                                                                                        \
  } while (false)

#endif  // DAEMON_CORE_INVARIANT_H_
