// What a lease on device memory costs beside the calls it cannot do without.

#ifndef TESTS_GPU_LEASE_FIGURES_H_
#define TESTS_GPU_LEASE_FIGURES_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/figure.h"
#include "tests/bench/servers.h"

namespace berth::gpu {

// A block of 64 MiB allocated, received, mapped, unmapped and freed:
// - warm, in bursts no longer than the warm shelf is deep, beside two bare echoes and the driver's own import,
//   map and unmap, with the shares of its three calls;
// - warm, one after the other without a pause, beside the same;
// - cold, beside two bare echoes and the driver's own create, export, import, map and unmap.
absl::StatusOr<std::vector<bench::Figure>> LeaseFigures(const bench::Programs& programs);

}  // namespace berth::gpu

#endif  // TESTS_GPU_LEASE_FIGURES_H_
