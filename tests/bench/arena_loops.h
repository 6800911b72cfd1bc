// What is measured of an arena, on whatever its memory is.

#ifndef TESTS_BENCH_ARENA_LOOPS_H_
#define TESTS_BENCH_ARENA_LOOPS_H_

#include <functional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/arena.h"
#include "common/bytes.h"
#include "tests/bench/figure.h"

namespace berth::bench {

// How many threads the figures of several are taken of.
inline constexpr int kArenaThreads = 8;

// Where an arena is used from.
struct ArenaLanes {
  // A stream for each thread, kArenaThreads of them.
  std::vector<ArenaStream> streams;
  // Called first on every thread.
  std::function<absl::Status()> enter = [] { return absl::OkStatus(); };
};

// The sizes that figures are taken of: 4 KiB to 64 MiB.
std::vector<Bytes> ArenaSizes();

// Runs `pair` as often as a sample has pairs: short beside a time slice, so that a sample is either undisturbed
// or far out; long beside the clock. Returns nanoseconds a pair. Errors: its own.
absl::StatusOr<double> TimePairs(absl::FunctionRef<absl::Status()> pair);

absl::Status AllocateAndFree(Arena& arena, Bytes bytes, ArenaStream stream);

// The arena's own lines: allocate and free of each size, and of a mix of sizes, on one thread and on several
// at once.
absl::StatusOr<std::vector<Figure>> ArenaFiguresOf(Arena& arena, const ArenaLanes& lanes);

}  // namespace berth::bench

#endif  // TESTS_BENCH_ARENA_LOOPS_H_
