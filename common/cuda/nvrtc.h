// NVRTC: compiles CUDA C++ at run time. Loaded at run time, with declarations of our own: no toolkit is
// needed to build.

#ifndef COMMON_CUDA_NVRTC_H_
#define COMMON_CUDA_NVRTC_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace berth::cuda {

// Compiles `source` for `architecture`: "compute_90" gives PTX, "sm_90" a cubin; either is what
// Driver::LoadModule() takes. `options` are NVRTC's own, as "--use_fast_math". Kernels that are asked for by name are
// declared extern "C". Thread-safe.
// Errors: UNSUPPORTED where there is no NVRTC; INVALID_FIELD with the compiler's log (its first 2,000 bytes)
// for a source that does not compile; DRIVER else.
absl::StatusOr<std::string> Compile(const std::string& source, const std::string& architecture,
                                    const std::vector<std::string>& options = {});

// "NVRTC 13.0". Thread-safe. Errors: UNSUPPORTED where there is none; DRIVER.
absl::StatusOr<std::string> NvrtcVersion();

}  // namespace berth::cuda

#endif  // COMMON_CUDA_NVRTC_H_
