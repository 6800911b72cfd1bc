// GpuCapability: a CUDA device's compute capability and the features that it implies.

#ifndef BERTH_GPU_CAPABILITY_H_
#define BERTH_GPU_CAPABILITY_H_

#include <string>

namespace berth {

// 0.0 for host memory.
struct GpuCapability {
  int major = 0;
  int minor = 0;

  bool tensor_cores() const { return major >= 7; }
  bool fp64_tensor_cores() const { return major >= 8; }
  bool async_copy() const { return major >= 8; }
  bool cluster_launch() const { return major >= 9; }
  bool tensor_memory_accelerator() const { return major >= 9; }
  static constexpr int kWarpSize = 32;

  friend bool operator==(const GpuCapability&, const GpuCapability&) = default;
};

// Returns the architecture for NVRTC to compile for. Rounds newer devices down, so that an older toolkit accepts the
// architecture; the output runs on them. Callers always pass it: NVRTC's default may lack double-precision atomics.
inline std::string NvrtcArchitecture(const GpuCapability& capability) {
  if (capability.major >= 9) return "compute_90";
  if (capability.major == 8 && capability.minor == 9) return "compute_89";
  if (capability.major == 8 && capability.minor == 6) return "compute_86";
  if (capability.major == 8) return "compute_80";
  if (capability.major == 7 && capability.minor == 5) return "compute_75";
  if (capability.major == 7) return "compute_70";
  return "compute_60";
}

}  // namespace berth

#endif  // BERTH_GPU_CAPABILITY_H_
