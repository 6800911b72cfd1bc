// BERTH_INVARIANT: stops the process when the core's internal accounting is inconsistent. Unreachable from input:
// errors that clients, workers or operators can cause are statuses. Broken() names what an explicit check found.

#ifndef DAEMON_CORE_TYPES_INVARIANT_H_
#define DAEMON_CORE_TYPES_INVARIANT_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace berth::core {

// Reports the violated condition on stderr, without waiting for a reader, and aborts.
[[noreturn]] void AbortForInvariant(const char* file, int line, const char* condition);

// The status of a check of the accounting that finds it inconsistent.
absl::Status Broken(const absl::AlphaNum& what);

}  // namespace berth::core

// Aborts with the source location and the violated condition unless `condition` holds. Active in optimised builds, too.
#define BERTH_INVARIANT(condition)                                                      \
  do {                                                                                  \
    if (!(condition)) ::berth::core::AbortForInvariant(__FILE__, __LINE__, #condition); \
  } while (false)

#endif  // DAEMON_CORE_TYPES_INVARIANT_H_
