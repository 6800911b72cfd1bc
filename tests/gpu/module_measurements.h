// The cost of a compiled module from the daemon, beside the cost of loading it.

#ifndef TESTS_GPU_MODULE_MEASUREMENTS_H_
#define TESTS_GPU_MODULE_MEASUREMENTS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/measurement.h"
#include "tests/bench/servers.h"

namespace berth::gpu {

// A kernel compiled by NVRTC; the same kernel delivered by the daemon and loaded, beside cuModuleLoadData alone.
absl::StatusOr<std::vector<bench::Measurement>> ModuleMeasurements(const bench::Programs& programs);

}  // namespace berth::gpu

#endif  // TESTS_GPU_MODULE_MEASUREMENTS_H_
