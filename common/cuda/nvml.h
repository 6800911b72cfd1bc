// Nvml: what NVIDIA's management library says of devices and of who uses them, without a context. Loaded at
// run time, with declarations of our own: no header of NVML's is needed.

#ifndef COMMON_CUDA_NVML_H_
#define COMMON_CUDA_NVML_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/bytes.h"

namespace berth::cuda {

// Nvml is thread-safe. Devices are named by UUID, "GPU-…": NVML's ordinals are not CUDA's.
// Errors of every method: DRIVER with the figures `call` and `driver_code`.
class Nvml {
 public:
  // Loads the library, once per process; a failure is tried again by the next caller. Lives as long as the
  // process.
  // Errors: UNSUPPORTED where there is no library, or one that is too old; DRIVER when it fails.
  static absl::StatusOr<Nvml*> Get();

  virtual ~Nvml() = default;

  // The UUIDs of all devices, by NVML's ordinal. One that does not answer is left out.
  virtual absl::StatusOr<std::vector<std::string>> Uuids() = 0;
  virtual absl::StatusOr<std::string> Name(const std::string& uuid) = 0;

  struct Memory {
    Bytes total;
    Bytes free;
    Bytes used;
  };
  virtual absl::StatusOr<Memory> GetMemory(const std::string& uuid) = 0;

  // A process that uses the device, and its bytes: its own allocations and its context.
  struct Process {
    uint32_t pid = 0;
    Bytes bytes;
  };
  // Of every kind: those that compute, and those that draw.
  virtual absl::StatusOr<std::vector<Process>> Processes(const std::string& uuid) = 0;

  // Of the time since the driver last looked, the percent in which the device was at something.
  virtual absl::StatusOr<uint32_t> Utilization(const std::string& uuid) = 0;
};

}  // namespace berth::cuda

#endif  // COMMON_CUDA_NVML_H_
