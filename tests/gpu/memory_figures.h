// What a block costs on a GPU beside the driver itself.

#ifndef TESTS_GPU_MEMORY_FIGURES_H_
#define TESTS_GPU_MEMORY_FIGURES_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/figure.h"
#include "tests/bench/servers.h"

namespace berth::gpu {

// Allocate, map, unmap and free of one block, from a daemon with nothing warm and from one with a warm shelf,
// beside cuMemAlloc and cuMemFree and beside the raw driver sequence (create, export, import, map, unmap,
// release), all of them in turn in one process, for blocks of 2 MiB, 64 MiB and 1 GiB.
absl::StatusOr<std::vector<bench::Figure>> MemoryFigures(const bench::Programs& programs);

}  // namespace berth::gpu

#endif  // TESTS_GPU_MEMORY_FIGURES_H_
