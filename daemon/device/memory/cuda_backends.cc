// Memory of a GPU, by the driver.

#include <numeric>
#include <utility>

#include <berth/error.h>

#include "common/status_macros.h"
#include "daemon/device/memory/direct_backend.h"
#include "daemon/device/memory/vmm_backend.h"

namespace berth {

// ---- vmm_backend.h -------------------------------------------------------------------------------------------

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

// ---- direct_backend.h ----------------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<DirectBackend>> DirectBackend::Open(cuda::Driver& driver, int ordinal) {
  BERTH_ASSIGN_OR_RETURN(std::string uuid, driver.DeviceUuid(ordinal));
  BERTH_ASSIGN_OR_RETURN(const Bytes total, driver.DeviceTotalMemory(ordinal));
  BERTH_ASSIGN_OR_RETURN(const cuda::Context context, driver.RetainPrimaryContext(ordinal));
  return std::unique_ptr<DirectBackend>(new DirectBackend(driver, ordinal, context, std::move(uuid), total));
}

DirectBackend::DirectBackend(cuda::Driver& driver, int ordinal, cuda::Context context, std::string uuid,
                             Bytes total)
    : driver_(driver), ordinal_(ordinal), context_(context), total_(total), records_(std::move(uuid)) {}

DirectBackend::~DirectBackend() {
  // Memory first: it would outlive the backend if other code retains the context too. On an error the memory stays
  // until the process ends.
  if (driver_.SetCurrentContext(context_).ok()) {
    for (const cuda::DevicePointer pointer : in_use_) driver_.Free(pointer).IgnoreError();
    driver_.SetCurrentContext(nullptr).IgnoreError();
  }
  driver_.ReleasePrimaryContext(ordinal_).IgnoreError();
}

absl::StatusOr<MemoryBlock> DirectBackend::Allocate(Bytes bytes, absl::string_view tag) {
  BERTH_RETURN_IF_ERROR(ValidateBlockSize(bytes, granularity()));
  if (bytes > total_) return RefuseMoreThan(device(), bytes, total_);
  BERTH_RETURN_IF_ERROR(driver_.SetCurrentContext(context_));
  const absl::StatusOr<cuda::DevicePointer> pointer = driver_.Allocate(bytes);
  if (!pointer.ok()) return ExplainDriverError(pointer.status(), device(), bytes);
  if (!in_use_.insert(*pointer).second) {
    // Not freed: that would free the existing block.
    return Refuse(Reason::kDriver,
                  "device {device}: {call} returned {requested} bytes at an address that is already in use",
                  {{"device", device()}, {"call", "cuMemAlloc"}, {"requested", bytes.count()}, {"driver_code", 0}});
  }
  const absl::Status zeroed = FillAndWait(*pointer, 0, bytes);
  const absl::StatusOr<IpcHandle> handle =
      zeroed.ok() ? driver_.GetIpcHandle(*pointer) : absl::StatusOr<IpcHandle>(zeroed);
  if (!handle.ok()) {
    FreeOrRetire(*pointer, bytes).IgnoreError();
    return ExplainDriverError(handle.status(), device(), bytes);
  }
  MemoryBlock block = records_.Add(bytes, tag, *pointer);
  block.handle = *handle;
  return block;
}

absl::Status DirectBackend::Deallocate(MemoryBlock& block) {
  BERTH_ASSIGN_OR_RETURN(const BlockRecords::Record record, records_.Find(block));
  BERTH_RETURN_IF_ERROR(driver_.SetCurrentContext(context_));
  BERTH_RETURN_IF_ERROR(ExplainDriverError(Free(record.address), device(), record.bytes));
  records_.Remove(block);
  block.handle.reset();
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> DirectBackend::HandOver(MemoryBlock& block) {
  BERTH_RETURN_IF_ERROR(records_.Find(block).status());
  return RefuseCapability(device(), "fd of memory with an IPC handle");
}

absl::StatusOr<MemoryBlock> DirectBackend::Adopt(UniqueFd, absl::string_view) {
  return RefuseCapability(device(), "fd of memory with an IPC handle");
}

absl::Status DirectBackend::Fill(const MemoryBlock& block, uint8_t value) {
  BERTH_ASSIGN_OR_RETURN(const BlockRecords::Record record, records_.Find(block));
  BERTH_RETURN_IF_ERROR(driver_.SetCurrentContext(context_));
  return ExplainDriverError(FillAndWait(record.address, value, record.bytes), device(), record.bytes);
}

absl::Status DirectBackend::Reap() {
  if (retired_.empty()) return absl::OkStatus();
  BERTH_RETURN_IF_ERROR(driver_.SetCurrentContext(context_));
  retired_bytes_ = 0;
  absl::Status first;
  for (const Retired& retired : std::exchange(retired_, {})) {
    first.Update(ExplainDriverError(FreeOrRetire(retired.pointer, retired.bytes), device(), retired.bytes));
  }
  return first;
}

absl::Status DirectBackend::FillAndWait(cuda::DevicePointer pointer, uint8_t value, Bytes bytes) {
  BERTH_RETURN_IF_ERROR(driver_.Fill(pointer, value, bytes));
  return driver_.SynchronizeContext();
}

absl::Status DirectBackend::Free(cuda::DevicePointer pointer) {
  const absl::Status freed = driver_.Free(pointer);
  if (freed.ok()) in_use_.erase(pointer);
  return freed;
}

absl::Status DirectBackend::FreeOrRetire(cuda::DevicePointer pointer, Bytes bytes) {
  const absl::Status freed = Free(pointer);
  if (!freed.ok()) {
    retired_.push_back({pointer, bytes});
    retired_bytes_ += bytes.count();
  }
  return freed;
}

}  // namespace berth
