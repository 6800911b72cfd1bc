// Measurements of an arena, on any kind of memory.

#ifndef TESTS_BENCH_ARENA_LOOPS_H_
#define TESTS_BENCH_ARENA_LOOPS_H_

#include <functional>
#include <vector>

#include <berth/arena.h>
#include <berth/bytes.h>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/bench/measurement.h"

namespace berth::bench {

// Number of threads in the multi-threaded measurements.
inline constexpr int kArenaThreads = 8;

// The threads' streams and setup.
struct ArenaStreams {
  // A stream for each thread, kArenaThreads of them.
  std::vector<ArenaStream> streams;
  // Called first on every thread.
  std::function<absl::Status()> enter = [] { return absl::OkStatus(); };
};

// The measured sizes: 4 KiB to 64 MiB.
std::vector<Bytes> ArenaSizes();

// Runs `pair` once for each pair of a sample. A sample is short compared with a time slice, so that it is either
// undisturbed or an outlier, and long compared with the clock's resolution. Returns nanoseconds per pair. Errors: those
// of `pair`.
absl::StatusOr<double> TimePairs(absl::FunctionRef<absl::Status()> pair);

absl::Status AllocateAndFree(Arena& arena, Bytes bytes, ArenaStream stream);

// Returns the arena's measurements: allocate and free of each size, and of a mix of sizes, on one thread and on several
// at once.
absl::StatusOr<std::vector<Measurement>> ArenaMeasurementsOf(Arena& arena, const ArenaStreams& setup);

}  // namespace berth::bench

#endif  // TESTS_BENCH_ARENA_LOOPS_H_
