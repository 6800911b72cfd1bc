// The clock that benchmarks read.

#ifndef TESTS_BENCH_STOPWATCH_H_
#define TESTS_BENCH_STOPWATCH_H_

#include <cstdint>
#include <ctime>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/status_macros.h"

namespace berth::bench {

// Returns CLOCK_MONOTONIC, which is the same for all processes.
inline int64_t MonotonicNanoseconds() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

using Step = absl::FunctionRef<absl::Status()>;

// Returns the duration of `step`. Errors: those of `step`.
inline absl::StatusOr<double> Microseconds(Step step) {
  const int64_t start = MonotonicNanoseconds();
  BERTH_RETURN_IF_ERROR(step());
  return (MonotonicNanoseconds() - start) * 1e-3;
}

}  // namespace berth::bench

#endif  // TESTS_BENCH_STOPWATCH_H_
