// VmmBackend makes blocks of a GPU's memory through CUDA's virtual memory management, which needs no context: the
// daemon takes no GPU memory except the blocks.

#ifndef DAEMON_DEVICE_MEMORY_VMM_BACKEND_H_
#define DAEMON_DEVICE_MEMORY_VMM_BACKEND_H_

#include <memory>
#include <string>
#include <vector>

#include "common/cuda/driver.h"
#include "daemon/device/memory/block_records.h"
#include "daemon/device/memory/memory_resource.h"

namespace berth {

// A block is created and exported, and the driver's own handle is released, so that only the fd holds the memory. This
// process cannot reach the memory. A handle that could not be released stays outstanding until Reap() releases it.
class VmmBackend : public MemoryResource {
 public:
  // For CUDA's device `ordinal`; `driver` outlives the backend.
  // Errors: those of the driver.
  static absl::StatusOr<std::unique_ptr<VmmBackend>> Open(cuda::Driver& driver, int ordinal);

  absl::StatusOr<MemoryBlock> Allocate(Bytes bytes, absl::string_view tag) override;
  absl::Status Deallocate(MemoryBlock& block) override;
  absl::StatusOr<UniqueFd> HandOver(MemoryBlock& block) override;
  absl::StatusOr<MemoryBlock> Adopt(UniqueFd fd, absl::string_view tag) override;
  absl::Status Fill(const MemoryBlock& block, uint8_t value) override;
  absl::Status Reap() override;
  Bytes outstanding() const override { return Bytes(records_.live().count() + retired_bytes_); }
  Bytes granularity() const override { return granularity_; }
  BackendKind kind() const override { return BackendKind::kCudaVmm; }
  const std::string& device() const override { return records_.device(); }

 private:
  struct Retired {
    cuda::Allocation allocation;
    Bytes bytes;
  };

  VmmBackend(cuda::Driver& driver, int ordinal, std::string uuid, Bytes total, Bytes granularity);

  // Releases the driver's handle of a block that is exported or was given up; retires it if that fails.
  absl::Status Release(cuda::Allocation allocation, Bytes bytes);

  cuda::Driver& driver_;
  const int ordinal_;
  const Bytes total_;
  const Bytes granularity_;
  BlockRecords records_;
  std::vector<Retired> retired_;
  uint64_t retired_bytes_ = 0;
};

// Returns the unit of the device's block sizes: a common multiple of the driver's granularity and kBlockGranularity.
absl::StatusOr<Bytes> VmmGranularity(cuda::Driver& driver, int ordinal);

}  // namespace berth

#endif  // DAEMON_DEVICE_MEMORY_VMM_BACKEND_H_
