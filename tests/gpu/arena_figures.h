// What an allocation out of an arena costs on a GPU beside the driver's own stream-ordered allocator.

#ifndef TESTS_GPU_ARENA_FIGURES_H_
#define TESTS_GPU_ARENA_FIGURES_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/figure.h"
#include "tests/bench/servers.h"

namespace berth::gpu {

// The arena's own lines (tests/bench/arena_loops.h) on device memory, each thread with a CUDA stream; then each
// size beside cuMemAllocAsync and cuMemFreeAsync, in turn on one thread and one stream, both warm.
absl::StatusOr<std::vector<bench::Figure>> ArenaFigures(const bench::Programs& programs);

}  // namespace berth::gpu

#endif  // TESTS_GPU_ARENA_FIGURES_H_
