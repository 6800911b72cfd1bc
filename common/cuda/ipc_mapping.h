// IpcMapping: device memory of another process, opened by its IPC handle.
//
//   BERTH_ASSIGN_OR_RETURN(auto mapping, IpcMapping::Open(*driver, handle, ordinal));
//   ... mapping.ptr() ...                                        // while the mapping lives

#ifndef COMMON_CUDA_IPC_MAPPING_H_
#define COMMON_CUDA_IPC_MAPPING_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cuda/driver.h"

namespace berth::cuda {

// IpcMapping is move-only and closes when destroyed. Thread-compatible. It retains the device's primary context, in
// which the memory is opened: a mapping ends with its context.
class IpcMapping {
 public:
  // Opens the handle for device `ordinal`, which may differ from the memory's device. `driver` outlives the mapping.
  // Errors: FAILED_PRECONDITION for memory of this same process, which has it already; those of Driver. An error leaves
  // nothing behind.
  static absl::StatusOr<IpcMapping> Open(Driver& driver, const IpcHandle& handle, int ordinal);

  IpcMapping(IpcMapping&& other) noexcept
      : driver_(std::exchange(other.driver_, nullptr)),
        ordinal_(other.ordinal_),
        context_(other.context_),
        pointer_(other.pointer_) {}
  IpcMapping& operator=(IpcMapping&&) = delete;
  // Closes the mapping. Work queued on the memory must be complete. An error of the driver is ignored: the memory then
  // stays open until the process ends.
  ~IpcMapping();

  DevicePointer ptr() const { return pointer_; }

 private:
  IpcMapping(Driver& driver, int ordinal, Context context, DevicePointer pointer)
      : driver_(&driver), ordinal_(ordinal), context_(context), pointer_(pointer) {}

  // nullptr after a move.
  Driver* driver_;
  const int ordinal_;
  const Context context_;
  const DevicePointer pointer_;
};

}  // namespace berth::cuda

#endif  // COMMON_CUDA_IPC_MAPPING_H_
