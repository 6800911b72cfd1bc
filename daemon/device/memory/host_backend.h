// HostBackend makes blocks of ordinary memory: for machines without a GPU, and for tests.

#ifndef DAEMON_DEVICE_MEMORY_HOST_BACKEND_H_
#define DAEMON_DEVICE_MEMORY_HOST_BACKEND_H_

#include <string>

#include "daemon/device/memory/block_records.h"
#include "daemon/device/memory/memory_resource.h"

namespace berth {

// Blocks are memfds of mode 0400, sealed against growing, shrinking and further seals. The kernel allocates their pages
// on first access. `total` limits the size of one block; the budget in front of the worker limits their sum.
class HostBackend : public MemoryResource {
 public:
  // `uuid` identifies the device in errors.
  HostBackend(std::string uuid, Bytes total);

  absl::StatusOr<MemoryBlock> Allocate(Bytes bytes, absl::string_view tag) override;
  absl::Status Deallocate(MemoryBlock& block) override;
  absl::StatusOr<UniqueFd> HandOver(MemoryBlock& block) override;
  absl::StatusOr<MemoryBlock> Adopt(UniqueFd fd, absl::string_view tag) override;
  absl::Status Fill(const MemoryBlock& block, uint8_t value) override;
  absl::Status Reap() override { return absl::OkStatus(); }
  Bytes outstanding() const override { return records_.live(); }
  Bytes granularity() const override { return Bytes(kBlockGranularity); }
  BackendKind kind() const override { return BackendKind::kHost; }
  const std::string& device() const override { return records_.device(); }

 private:
  const Bytes total_;
  BlockRecords records_;
};

}  // namespace berth

#endif  // DAEMON_DEVICE_MEMORY_HOST_BACKEND_H_
