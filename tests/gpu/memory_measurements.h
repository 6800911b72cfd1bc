// The cost of a block on a GPU, beside the driver itself.

#ifndef TESTS_GPU_MEMORY_MEASUREMENTS_H_
#define TESTS_GPU_MEMORY_MEASUREMENTS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/measurement.h"
#include "tests/bench/servers.h"

namespace berth::gpu {

// Allocate, map, unmap and free of one block, from a daemon without warm blocks and from one with a warm block cache.
// Compared with cuMemAlloc and cuMemFree, and with the raw driver sequence (create, export, import, map, unmap,
// release). All alternate in one process, for blocks of 2 MiB, 64 MiB and 1 GiB.
absl::StatusOr<std::vector<bench::Measurement>> MemoryMeasurements(const bench::Programs& programs);

}  // namespace berth::gpu

#endif  // TESTS_GPU_MEMORY_MEASUREMENTS_H_
