// How near a scatter over several GPUs comes to one GPU's time divided by their number.

#ifndef TESTS_GPU_SCATTER_FIGURES_H_
#define TESTS_GPU_SCATTER_FIGURES_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/figure.h"
#include "tests/bench/servers.h"

namespace berth::gpu {

// A batch of small factorisations, 1 GiB for each device, over all of 2, 4 and 8 GPUs that there are, beside the same
// batch on one of them: its time divided by the count. Nothing where there is one GPU.
absl::StatusOr<std::vector<bench::Figure>> ScatterFigures(const bench::Programs& programs);

}  // namespace berth::gpu

#endif  // TESTS_GPU_SCATTER_FIGURES_H_
