// How close a scatter over several GPUs comes to one GPU's time divided by their number.

#ifndef TESTS_GPU_SCATTER_MEASUREMENTS_H_
#define TESTS_GPU_SCATTER_MEASUREMENTS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/measurement.h"
#include "tests/bench/servers.h"

namespace berth::gpu {

// A batch of small factorisations, 1 GiB for each device, over 2, 4 and 8 GPUs as far as they exist. Compared with the
// same batch's time on one of them, divided by the count. Empty where there is one GPU.
absl::StatusOr<std::vector<bench::Measurement>> ScatterMeasurements(const bench::Programs& programs);

}  // namespace berth::gpu

#endif  // TESTS_GPU_SCATTER_MEASUREMENTS_H_
