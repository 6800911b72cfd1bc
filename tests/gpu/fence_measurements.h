// The cost of ordering the uses of a block, beside the driver's own means.

#ifndef TESTS_GPU_FENCE_MEASUREMENTS_H_
#define TESTS_GPU_FENCE_MEASUREMENTS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/measurement.h"
#include "tests/bench/servers.h"

namespace berth::gpu {

// For a block of one process: the caller's cost to prepare and finish a use, above the driver's own calls, on blocked
// streams, so that every wait is queued:
// - alternately on two streams, above cuStreamWaitEvent and cuEventRecord, and above the fence values' own wait
//   and write;
// - on one stream, above cuEventRecord, and above a write.
// For a block of two processes:
// - the time in which their streams hand it over and back, beside two values that they only wait for and write;
// - the caller's cost to prepare and finish a use, beside two bare echoes.
absl::StatusOr<std::vector<bench::Measurement>> FenceMeasurements(const bench::Programs& programs);

}  // namespace berth::gpu

#endif  // TESTS_GPU_FENCE_MEASUREMENTS_H_
