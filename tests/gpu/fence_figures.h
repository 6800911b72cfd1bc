// What ordering uses of a block costs beside the driver's own ways.

#ifndef TESTS_GPU_FENCE_FIGURES_H_
#define TESTS_GPU_FENCE_FIGURES_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/figure.h"
#include "tests/bench/servers.h"

namespace berth::gpu {

// Of a block of one process, what preparing and finishing a use takes the caller above the driver's own calls, with
// streams that are held up, so that every wait is queued:
// - in turn on two streams, above cuStreamWaitEvent and cuEventRecord, and above the words' own wait and write;
// - on one stream, above cuEventRecord, and above a write.
// Of a block of two processes:
// - how long their streams take to hand it over and back, beside two words that they wait for and write alone;
// - what preparing and finishing a use takes the caller, beside two bare echoes.
absl::StatusOr<std::vector<bench::Figure>> FenceFigures(const bench::Programs& programs);

}  // namespace berth::gpu

#endif  // TESTS_GPU_FENCE_FIGURES_H_
