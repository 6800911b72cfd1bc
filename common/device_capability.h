// DeviceCapability: what follows from a device's compute capability, by the rules that Berth's ancestors had
// (multiplied by ten: 90 is 9.0).

#ifndef COMMON_DEVICE_CAPABILITY_H_
#define COMMON_DEVICE_CAPABILITY_H_

#include <cstdint>

namespace berth {

struct DeviceCapability {
  // 10 x major + minor; 0 for host memory.
  uint32_t compute = 0;

  constexpr uint32_t major() const { return compute / 10; }
  constexpr bool tensor_cores() const { return major() >= 7; }
  constexpr bool fp64_tensor_cores() const { return major() >= 8; }
  constexpr bool async_copy() const { return major() >= 8; }
  constexpr bool cluster_launch() const { return major() >= 9; }
  constexpr bool tensor_memory_accelerator() const { return major() >= 9; }
  // The architecture that NVRTC compiles for, as in "compute_90". What is newer is rounded down, so that an older toolkit
  // takes it; none would have it go below 6.0, where there are no double-precision atomics.
  constexpr uint32_t nvrtc_architecture() const {
    if (major() >= 9) return 90;
    if (compute == 89 || compute == 86) return compute;
    if (major() == 8) return 80;
    if (compute == 75) return 75;
    return major() == 7 ? 70 : 60;
  }
};

// Threads that run in step.
inline constexpr uint32_t kWarpSize = 32;

}  // namespace berth

#endif  // COMMON_DEVICE_CAPABILITY_H_
