// DirectBackend makes blocks of a GPU's memory with cuMemAlloc, which leave the process as CUDA's legacy IPC handles.
// That needs a context, about 0.5 GiB of the device, so it is for those who asked for such blocks.

#ifndef DAEMON_DEVICE_DIRECT_BACKEND_H_
#define DAEMON_DEVICE_DIRECT_BACKEND_H_

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/cuda/driver.h"
#include "daemon/device/block_records.h"
#include "daemon/device/memory_resource.h"

namespace berth {

// Blocks live and die with this resource and its process; importers must have let go before one is deallocated. The
// driver hands memory out again within the process, so it is written with zeroes before anybody gets it. Sizes are
// multiples of kBlockGranularity: a handle opens all of the driver's own 2 MiB that an address lies in.
class DirectBackend : public MemoryResource {
 public:
  // For CUDA's device `ordinal`, in its primary context, which the backend retains. Makes that context current on
  // every thread that calls it. `driver` outlives the backend.
  // Errors: those of the driver.
  static absl::StatusOr<std::unique_ptr<DirectBackend>> Open(cuda::Driver& driver, int ordinal);

  // Frees what is outstanding, and releases the context.
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

  // Returns once every byte is written.
  absl::Status FillAndWait(cuda::DevicePointer pointer, uint8_t value, Bytes bytes);
  absl::Status Free(cuda::DevicePointer pointer);
  // The same for memory that is no block's; what is not freed is retired.
  absl::Status FreeOrRetire(cuda::DevicePointer pointer, Bytes bytes);

  cuda::Driver& driver_;
  const int ordinal_;
  const cuda::Context context_;
  const Bytes total_;
  BlockRecords records_;
  // Of blocks, and of what is retired.
  std::set<cuda::DevicePointer> in_use_;
  std::vector<Retired> retired_;
  uint64_t retired_bytes_ = 0;
};

}  // namespace berth

#endif  // DAEMON_DEVICE_DIRECT_BACKEND_H_
