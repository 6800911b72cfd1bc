// Nvml: data of NVIDIA's management library about devices and the processes that use them, without a context. Loaded at
// run time, with its own declarations: no NVML header is needed.

#ifndef COMMON_CUDA_NVML_H_
#define COMMON_CUDA_NVML_H_

#include <cstdint>
#include <string>
#include <vector>

#include <berth/bytes.h>

#include "absl/status/statusor.h"

namespace berth::cuda {

// Nvml is thread-safe. Methods name devices by UUID, "GPU-…": CUDA's ordinals in this process may differ from NVML's.
// Errors of every method: DRIVER with the named values `call` and `driver_code`.
class Nvml {
 public:
  // Loads the library, once per process; after a failure the next caller retries. Lives as long as the process.
  // Errors: UNSUPPORTED if the library is missing or too old; DRIVER if it fails.
  static absl::StatusOr<Nvml*> Get();

  virtual ~Nvml() = default;

  // Returns the UUIDs of all devices, by NVML's ordinal. Omits a device that does not answer.
  virtual absl::StatusOr<std::vector<std::string>> Uuids() = 0;
  // Returns NVML's ordinal of a GPU, the index in nvidia-smi: the GPU's place in PCI order among those that the driver
  // shows to this container. CUDA's environment variables do not change it.
  virtual absl::StatusOr<uint32_t> Index(const std::string& uuid) = 0;
  virtual absl::StatusOr<std::string> Name(const std::string& uuid) = 0;

  struct Memory {
    Bytes total;
    Bytes free;
    Bytes used;
  };
  virtual absl::StatusOr<Memory> GetMemory(const std::string& uuid) = 0;

  // A process that uses the device, and the bytes of its allocations and its context.
  struct Process {
    uint32_t pid = 0;
    Bytes bytes;
  };
  // Returns processes of all kinds: compute and graphics.
  virtual absl::StatusOr<std::vector<Process>> Processes(const std::string& uuid) = 0;

  // Returns the percentage of the driver's last sample period in which the device was busy.
  virtual absl::StatusOr<uint32_t> Utilization(const std::string& uuid) = 0;
};

}  // namespace berth::cuda

#endif  // COMMON_CUDA_NVML_H_
