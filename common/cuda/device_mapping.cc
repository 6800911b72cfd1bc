#include "common/cuda/device_mapping.h"

#include "common/status_macros.h"

namespace berth::cuda {
namespace {

// Maps all of `allocation` at `address`. Nothing is mapped after an error.
absl::Status MapAt(Driver& driver, DevicePointer address, Bytes bytes, Allocation allocation, int ordinal,
                   Access access) {
  BERTH_RETURN_IF_ERROR(driver.MapMemory(address, bytes, allocation));
  absl::Status accessible = driver.SetAccess(address, bytes, ordinal, access);
  if (!accessible.ok()) driver.UnmapMemory(address, bytes).IgnoreError();
  return accessible;
}

}  // namespace

absl::StatusOr<DeviceMapping> DeviceMapping::Map(int fd, Bytes bytes, int ordinal, bool read_only) {
  BERTH_ASSIGN_OR_RETURN(Driver* const driver, Driver::Get());
  return Map(*driver, fd, bytes, ordinal, read_only);
}

absl::StatusOr<DeviceMapping> DeviceMapping::Map(Driver& driver, int fd, Bytes bytes, int ordinal,
                                                 bool read_only) {
  BERTH_ASSIGN_OR_RETURN(const Allocation allocation, driver.ImportFd(fd));
  const absl::StatusOr<DevicePointer> address = driver.ReserveAddress(bytes);
  if (!address.ok()) {
    driver.ReleaseMemory(allocation).IgnoreError();
    return address.status();
  }
  const absl::Status mapped =
      MapAt(driver, *address, bytes, allocation, ordinal, read_only ? Access::kReadOnly : Access::kReadWrite);
  // The mapping holds the memory; the allocation's own reference is not needed.
  driver.ReleaseMemory(allocation).IgnoreError();
  if (!mapped.ok()) {
    driver.FreeAddress(*address, bytes).IgnoreError();
    return mapped;
  }
  return DeviceMapping(driver, *address, bytes);
}

DeviceMapping& DeviceMapping::operator=(DeviceMapping&& other) noexcept {
  if (this == &other) return *this;
  Unmap().IgnoreError();
  driver_ = std::exchange(other.driver_, nullptr);
  pointer_ = other.pointer_;
  bytes_ = other.bytes_;
  return *this;
}

absl::Status DeviceMapping::Unmap() {
  Driver* const driver = std::exchange(driver_, nullptr);
  if (driver == nullptr) return absl::OkStatus();
  BERTH_RETURN_IF_ERROR(driver->UnmapMemory(pointer_, bytes_));
  return driver->FreeAddress(pointer_, bytes_);
}

}  // namespace berth::cuda
