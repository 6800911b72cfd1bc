// DeviceMapping: a block's memory at an address of a device.
//
//   BERTH_ASSIGN_OR_RETURN(auto mapping, DeviceMapping::Map(fd, bytes, ordinal, /*read_only=*/true));
//   ... mapping.ptr() ...                                        // until the mapping goes

#ifndef COMMON_CUDA_DEVICE_MAPPING_H_
#define COMMON_CUDA_DEVICE_MAPPING_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/bytes.h"
#include "common/cuda/driver.h"

namespace berth::cuda {

// DeviceMapping is move-only and unmaps when destroyed. Thread-compatible. It keeps the memory alive, so the
// fd may be closed once it is made.
class DeviceMapping {
 public:
  // Imports `fd`, which stays the caller's, and maps its `bytes` for device `ordinal` (FindDevice() knows it
  // by UUID). Needs no context; what uses ptr() does. `read_only` makes a write through this mapping fault:
  // it stops bugs, not malice.
  // Errors: those of Driver; nothing is left behind after one.
  static absl::StatusOr<DeviceMapping> Map(int fd, Bytes bytes, int ordinal, bool read_only);
  // The same with a driver of the caller's choice, which outlives the mapping.
  static absl::StatusOr<DeviceMapping> Map(Driver& driver, int fd, Bytes bytes, int ordinal, bool read_only);

  DeviceMapping(DeviceMapping&& other) noexcept
      : driver_(std::exchange(other.driver_, nullptr)), pointer_(other.pointer_), bytes_(other.bytes_) {}
  DeviceMapping& operator=(DeviceMapping&& other) noexcept;
  // Unmaps; an error of the driver is dropped. Work queued on the memory must be complete.
  ~DeviceMapping() { Unmap().IgnoreError(); }

  DevicePointer ptr() const { return pointer_; }
  Bytes bytes() const { return bytes_; }

  // Unmaps now. Does nothing the second time.
  // Errors: DRIVER; what could not be undone stays until the process ends.
  absl::Status Unmap();

 private:
  DeviceMapping(Driver& driver, DevicePointer pointer, Bytes bytes)
      : driver_(&driver), pointer_(pointer), bytes_(bytes) {}

  // nullptr once unmapped or moved from.
  Driver* driver_;
  DevicePointer pointer_;
  Bytes bytes_;
};

}  // namespace berth::cuda

#endif  // COMMON_CUDA_DEVICE_MAPPING_H_
