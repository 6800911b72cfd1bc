// The time to publish a file on a GPU, beside the bare link and beside safetensors.

#ifndef TESTS_GPU_PUBLISH_MEASUREMENTS_H_
#define TESTS_GPU_PUBLISH_MEASUREMENTS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/measurement.h"
#include "tests/bench/servers.h"

namespace berth::gpu {

// The time to publish 8 GiB from the page cache: from open() to the name, with the context up; and of the whole
// command. For comparison: the same bytes over the link from pinned memory, and safetensors.torch.load_file of the same
// file. The latter is skipped with a message where it is not installed.
absl::StatusOr<std::vector<bench::Measurement>> PublishMeasurements(const bench::Programs& programs);

}  // namespace berth::gpu

#endif  // TESTS_GPU_PUBLISH_MEASUREMENTS_H_
