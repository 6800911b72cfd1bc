// VmmBackend makes blocks of a GPU's memory through CUDA's virtual memory management, which needs no context:
// the daemon costs the GPU nothing but the blocks.

#ifndef DAEMON_DEVICE_VMM_BACKEND_H_
#define DAEMON_DEVICE_VMM_BACKEND_H_

#include <string>
#include <utility>

#include "common/cuda/driver.h"
#include "daemon/device/memory_backend.h"

namespace berth {

// A block is created, exported, and the driver's own handle released, so that the fd alone keeps the memory.
class VmmBackend : public MemoryBackend {
 public:
  // For CUDA's device `ordinal`; `driver` outlives the backend.
  // Errors: those of the driver.
  static absl::StatusOr<VmmBackend> Open(cuda::Driver& driver, int ordinal);

  absl::StatusOr<UniqueFd> Create(Bytes bytes) override;
  Bytes granularity() const override { return granularity_; }
  BackendKind kind() const override { return BackendKind::kCudaVmm; }

 private:
  VmmBackend(cuda::Driver& driver, int ordinal, std::string uuid, Bytes total, Bytes granularity)
      : driver_(driver),
        ordinal_(ordinal),
        uuid_(std::move(uuid)),
        total_(total),
        granularity_(granularity) {}

  // The driver's refusal, with the device and what was asked of it.
  absl::Status Explain(const absl::Status& error, Bytes bytes) const;

  cuda::Driver& driver_;
  const int ordinal_;
  const std::string uuid_;
  const Bytes total_;
  const Bytes granularity_;
};

// What blocks of the device are multiples of: the driver's granularity, and kBlockGranularity.
absl::StatusOr<Bytes> VmmGranularity(cuda::Driver& driver, int ordinal);

}  // namespace berth

#endif  // DAEMON_DEVICE_VMM_BACKEND_H_
