// The cost of a lease of device memory, beside the driver calls that it requires.

#ifndef TESTS_GPU_LEASE_MEASUREMENTS_H_
#define TESTS_GPU_LEASE_MEASUREMENTS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/measurement.h"
#include "tests/bench/servers.h"

namespace berth::gpu {

// A block of 64 MiB allocated, received, mapped, unmapped and freed:
// - warm, in bursts no longer than the warm block cache's depth, beside two bare echoes and the driver's own import,
//   map and unmap, with the shares of its three calls;
// - warm, one after the other without a pause, beside the same;
// - cold, beside two bare echoes and the driver's own create, export, import, map and unmap.
absl::StatusOr<std::vector<bench::Measurement>> LeaseMeasurements(const bench::Programs& programs);

}  // namespace berth::gpu

#endif  // TESTS_GPU_LEASE_MEASUREMENTS_H_
