#include "daemon/device/memory/vmm_backend.h"

#include <numeric>
#include <utility>

#include "common/status_macros.h"

namespace berth {

absl::StatusOr<Bytes> VmmGranularity(cuda::Driver& driver, int ordinal) {
  BERTH_ASSIGN_OR_RETURN(const Bytes granularity, driver.AllocationGranularity(ordinal));
  return Bytes(std::lcm(granularity.count(), kBlockGranularity));
}

absl::StatusOr<std::unique_ptr<VmmBackend>> VmmBackend::Open(cuda::Driver& driver, int ordinal) {
  BERTH_ASSIGN_OR_RETURN(std::string uuid, driver.DeviceUuid(ordinal));
  BERTH_ASSIGN_OR_RETURN(const Bytes total, driver.DeviceTotalMemory(ordinal));
  BERTH_ASSIGN_OR_RETURN(const Bytes granularity, VmmGranularity(driver, ordinal));
  return std::unique_ptr<VmmBackend>(new VmmBackend(driver, ordinal, std::move(uuid), total, granularity));
}

VmmBackend::VmmBackend(cuda::Driver& driver, int ordinal, std::string uuid, Bytes total, Bytes granularity)
    : driver_(driver),
      ordinal_(ordinal),
      total_(total),
      granularity_(granularity),
      records_(std::move(uuid)) {}

absl::StatusOr<MemoryBlock> VmmBackend::Allocate(Bytes bytes, absl::string_view tag) {
  BERTH_RETURN_IF_ERROR(ValidateBlockSize(bytes, granularity_));
  if (bytes > total_) return RefuseMoreThan(device(), bytes, total_);
  const absl::StatusOr<cuda::Allocation> allocation = driver_.CreateMemory(ordinal_, bytes);
  if (!allocation.ok()) return ExplainDriverError(allocation.status(), device(), bytes);
  absl::StatusOr<UniqueFd> fd = driver_.ExportFd(*allocation);
  // Released before any other process has the fd: from here on the fd's last close frees the memory.
  const absl::Status released = Release(*allocation, bytes);
  if (!fd.ok()) return ExplainDriverError(fd.status(), device(), bytes);
  if (!released.ok()) return ExplainDriverError(released, device(), bytes);
  MemoryBlock block = records_.Add(bytes, tag);
  block.fd = *std::move(fd);
  return block;
}

absl::Status VmmBackend::Release(cuda::Allocation allocation, Bytes bytes) {
  const absl::Status released = driver_.ReleaseMemory(allocation);
  if (!released.ok()) {
    retired_.push_back({allocation, bytes});
    retired_bytes_ += bytes.count();
  }
  return released;
}

absl::Status VmmBackend::Reap() {
  retired_bytes_ = 0;
  absl::Status first;
  for (const Retired& retired : std::exchange(retired_, {})) {
    first.Update(ExplainDriverError(Release(retired.allocation, retired.bytes), device(), retired.bytes));
  }
  return first;
}

absl::Status VmmBackend::Deallocate(MemoryBlock& block) { return HandOver(block).status(); }

absl::StatusOr<UniqueFd> VmmBackend::HandOver(MemoryBlock& block) {
  BERTH_RETURN_IF_ERROR(records_.Find(block).status());
  records_.Remove(block);
  return std::move(block.fd);
}

absl::StatusOr<MemoryBlock> VmmBackend::Adopt(UniqueFd fd, absl::string_view tag) {
  MemoryBlock block = records_.Add(Bytes(0), tag);
  block.fd = std::move(fd);
  return block;
}

absl::Status VmmBackend::Fill(const MemoryBlock& block, uint8_t) {
  BERTH_RETURN_IF_ERROR(records_.Find(block).status());
  return RefuseCapability(device(), "context in which to write memory");
}

}  // namespace berth
