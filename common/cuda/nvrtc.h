// NVRTC: compiles CUDA C++ at run time. Loaded at run time, with its own declarations: no toolkit is needed to build.

#ifndef COMMON_CUDA_NVRTC_H_
#define COMMON_CUDA_NVRTC_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace berth::cuda {

// Compiles `source` for `architecture`: "compute_90" yields PTX, "sm_90" a cubin; Driver::LoadModule() accepts both.
// `options` are NVRTC's own, such as "--use_fast_math". Kernels to be found by name must be extern "C". Thread-safe.
// Errors: UNSUPPORTED if NVRTC is missing; INVALID_FIELD with the compiler's log (its first 2,000 bytes) if the source
// does not compile; DRIVER else.
absl::StatusOr<std::string> Compile(const std::string& source, const std::string& architecture,
                                    const std::vector<std::string>& options = {});

// Returns the version, such as "NVRTC 13.0". Thread-safe. Errors: UNSUPPORTED if NVRTC is missing; DRIVER.
absl::StatusOr<std::string> NvrtcVersion();

}  // namespace berth::cuda

#endif  // COMMON_CUDA_NVRTC_H_
