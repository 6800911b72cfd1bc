// Waiting for a daemon to be done with what it does behind its answers.

#ifndef TESTS_BENCH_QUIET_H_
#define TESTS_BENCH_QUIET_H_

#include "absl/status/status.h"
#include "client/inspector.h"
#include "common/bytes.h"

namespace berth::bench {

// Waits until device 0 has no block in the making or on its way back, and `warm` bytes ready.
// Errors: kDeadlineExceeded with what was seen last.
absl::Status AwaitQuiet(const Inspector& inspector, Bytes warm);

}  // namespace berth::bench

#endif  // TESTS_BENCH_QUIET_H_
