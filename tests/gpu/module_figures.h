// What a compiled module costs who gets it from the node, beside what loading it costs anyhow.

#ifndef TESTS_GPU_MODULE_FIGURES_H_
#define TESTS_GPU_MODULE_FIGURES_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/figure.h"
#include "tests/bench/servers.h"

namespace berth::gpu {

// A kernel compiled by NVRTC; the same given by the node and loaded, beside cuModuleLoadData alone of what is there.
absl::StatusOr<std::vector<bench::Figure>> ModuleFigures(const bench::Programs& programs);

}  // namespace berth::gpu

#endif  // TESTS_GPU_MODULE_FIGURES_H_
