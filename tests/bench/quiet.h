// Waits for a daemon to finish the work behind its answers.

#ifndef TESTS_BENCH_QUIET_H_
#define TESTS_BENCH_QUIET_H_

#include <berth/bytes.h>

#include "absl/status/status.h"
#include "client/sdk/admin/inspector.h"

namespace berth::bench {

// Waits until device 0 has no block in creation or release, and `warm` bytes ready. Errors: kDeadlineExceeded with the
// last state.
absl::Status AwaitQuiet(const Inspector& inspector, Bytes warm);

}  // namespace berth::bench

#endif  // TESTS_BENCH_QUIET_H_
