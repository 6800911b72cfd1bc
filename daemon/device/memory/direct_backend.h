// DirectBackend makes blocks of a GPU's memory with cuMemAlloc, exported as CUDA's legacy IPC handles. The backend
// needs a context, about 0.5 GiB of the device, so it only serves requests for such blocks.

#ifndef DAEMON_DEVICE_MEMORY_DIRECT_BACKEND_H_
#define DAEMON_DEVICE_MEMORY_DIRECT_BACKEND_H_

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/cuda/driver.h"
#include "daemon/device/memory/block_records.h"
#include "daemon/device/memory/memory_resource.h"

namespace berth {

// Blocks live as long as this resource and its process; importers must have closed a block before it is deallocated.
// The driver reuses memory within the process, so the backend fills each block with zeroes first. Sizes are multiples
// of kBlockGranularity: a handle opens all of the driver's own 2 MiB unit around an address.
class DirectBackend : public MemoryResource {
 public:
  // Opens CUDA's device `ordinal` in its primary context, which the backend retains. Makes that context current on
  // every thread that calls the backend. `driver` outlives the backend.
  // Errors: those of the driver.
  static absl::StatusOr<std::unique_ptr<DirectBackend>> Open(cuda::Driver& driver, int ordinal);

  // Frees the outstanding memory and releases the context.
  ~DirectBackend() override;

  absl::StatusOr<MemoryBlock> Allocate(Bytes bytes, absl::string_view tag) override;
  absl::Status Deallocate(MemoryBlock& block) override;
  absl::StatusOr<UniqueFd> HandOver(MemoryBlock& block) override;
  absl::StatusOr<MemoryBlock> Adopt(UniqueFd fd, absl::string_view tag) override;
  absl::Status Fill(const MemoryBlock& block, uint8_t value) override;
  absl::Status Reap() override;
  Bytes outstanding() const override { return Bytes(records_.live().count() + retired_bytes_); }
  Bytes granularity() const override { return Bytes(kBlockGranularity); }
  BackendKind kind() const override { return BackendKind::kCudaDirect; }
  const std::string& device() const override { return records_.device(); }

 private:
  struct Retired {
    cuda::DevicePointer pointer;
    Bytes bytes;
  };

  DirectBackend(cuda::Driver& driver, int ordinal, cuda::Context context, std::string uuid, Bytes total);

  // Writes every byte, and returns when all are written.
  absl::Status FillAndWait(cuda::DevicePointer pointer, uint8_t value, Bytes bytes);
  absl::Status Free(cuda::DevicePointer pointer);
  // Frees memory that belongs to no block; retires it if that fails.
  absl::Status FreeOrRetire(cuda::DevicePointer pointer, Bytes bytes);

  cuda::Driver& driver_;
  const int ordinal_;
  const cuda::Context context_;
  const Bytes total_;
  BlockRecords records_;
  // Addresses of blocks and of retired memory.
  std::set<cuda::DevicePointer> in_use_;
  std::vector<Retired> retired_;
  uint64_t retired_bytes_ = 0;
};

}  // namespace berth

#endif  // DAEMON_DEVICE_MEMORY_DIRECT_BACKEND_H_
