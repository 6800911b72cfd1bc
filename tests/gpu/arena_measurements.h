// The cost of an arena allocation on a GPU, beside the driver's stream-ordered allocator.

#ifndef TESTS_GPU_ARENA_MEASUREMENTS_H_
#define TESTS_GPU_ARENA_MEASUREMENTS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/measurement.h"
#include "tests/bench/servers.h"

namespace berth::gpu {

// Returns the arena's measurements (tests/bench/arena_loops.h) on device memory, each thread with a CUDA stream. Then
// compares each size with cuMemAllocAsync and cuMemFreeAsync, alternately on one thread and one stream, both warm.
absl::StatusOr<std::vector<bench::Measurement>> ArenaMeasurements(const bench::Programs& programs);

}  // namespace berth::gpu

#endif  // TESTS_GPU_ARENA_MEASUREMENTS_H_
