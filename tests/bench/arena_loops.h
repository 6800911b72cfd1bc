// What is measured of an arena, on whatever its memory is.

#ifndef TESTS_BENCH_ARENA_LOOPS_H_
#define TESTS_BENCH_ARENA_LOOPS_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/arena.h"
#include "common/bytes.h"
#include "tests/bench/figure.h"

namespace berth::bench {

// The sizes that figures are taken of: 4 KiB to 64 MiB.
std::vector<Bytes> ArenaSizes();

// Allocate and free of one size, again and again: nanoseconds a pair, a sample for each short run of them, of
// `threads` at once, each on a stream of its own.
absl::StatusOr<std::vector<double>> PairTimes(Arena& arena, Bytes bytes, int threads);

// The same of mixed sizes, 4 KiB to 1 MiB, with 64 live at a time and freed in random order.
absl::StatusOr<std::vector<double>> MixedTimes(Arena& arena, int threads);

// Runs `body` as often as a sample has pairs, and returns nanoseconds for each.
absl::StatusOr<double> TimePairs(absl::FunctionRef<absl::Status()> body);

// The arena's own lines: each size, alone and with 8 threads, and the mix.
absl::StatusOr<std::vector<Figure>> ArenaFiguresOf(Arena& arena);

}  // namespace berth::bench

#endif  // TESTS_BENCH_ARENA_LOOPS_H_
