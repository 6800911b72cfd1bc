// DeviceMapping: maps a block's memory at a device address.
//
//   BERTH_ASSIGN_OR_RETURN(auto mapping, DeviceMapping::Map(fd, bytes, ordinal, /*read_only=*/true));
//   ... mapping.ptr() ...                                        // while the mapping lives

#ifndef COMMON_CUDA_DEVICE_MAPPING_H_
#define COMMON_CUDA_DEVICE_MAPPING_H_

#include <utility>

#include <berth/bytes.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cuda/driver.h"

namespace berth::cuda {

// DeviceMapping is move-only and unmaps when destroyed. Thread-compatible. It holds a reference to the memory, so the
// caller may close the fd afterwards.
class DeviceMapping {
 public:
  // Imports `fd`, which the caller still owns, and maps its `bytes` for device `ordinal` (FindDevice() resolves a
  // UUID). Needs no context, but users of ptr() do. `read_only` makes a write through this mapping fault: it prevents
  // bugs, not attacks.
  // Errors: those of Driver; an error leaves nothing behind.
  static absl::StatusOr<DeviceMapping> Map(int fd, Bytes bytes, int ordinal, bool read_only);
  // Like Map() above, with a driver that the caller chooses and that outlives the mapping.
  static absl::StatusOr<DeviceMapping> Map(Driver& driver, int fd, Bytes bytes, int ordinal, bool read_only);

  DeviceMapping(DeviceMapping&& other) noexcept
      : driver_(std::exchange(other.driver_, nullptr)), pointer_(other.pointer_), bytes_(other.bytes_) {}
  DeviceMapping& operator=(DeviceMapping&& other) noexcept;
  // Unmaps; ignores an error of the driver. Work queued on the memory must be complete.
  ~DeviceMapping() { Unmap().IgnoreError(); }

  DevicePointer ptr() const { return pointer_; }
  Bytes bytes() const { return bytes_; }

  // Unmaps now. A second call does nothing.
  // Errors: DRIVER; resources that could not be released stay until the process ends.
  absl::Status Unmap();

 private:
  DeviceMapping(Driver& driver, DevicePointer pointer, Bytes bytes)
      : driver_(&driver), pointer_(pointer), bytes_(bytes) {}

  // nullptr after unmapping or a move.
  Driver* driver_;
  DevicePointer pointer_;
  Bytes bytes_;
};

}  // namespace berth::cuda

#endif  // COMMON_CUDA_DEVICE_MAPPING_H_
