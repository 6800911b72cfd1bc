// RegisteredMemory: host memory that CUDA's streams reach, in whatever context of the process they are. A
// registration ends with the context that made it, so it is made in a device's primary context, which is
// retained as long.

#ifndef CLIENT_INTERNAL_REGISTERED_MEMORY_H_
#define CLIENT_INTERNAL_REGISTERED_MEMORY_H_

#include <utility>

#include "absl/status/statusor.h"
#include "common/bytes.h"
#include "common/cuda/driver.h"

namespace berth::internal {

// Move-only; unregisters when destroyed. Thread-compatible.
class RegisteredMemory {
 public:
  // Registers whole pages, which stay the caller's and must outlive this. Takes some 0.2 ms and a current context:
  // its device is the one whose primary context is taken. The thread's own is left as it was.
  // Errors: those of Driver.
  static absl::StatusOr<RegisteredMemory> Register(cuda::Driver& driver, void* address, Bytes bytes,
                                                   bool read_only);
  RegisteredMemory(RegisteredMemory&& other) noexcept
      : driver_(std::exchange(other.driver_, nullptr)),
        context_(other.context_),
        ordinal_(other.ordinal_),
        address_(other.address_),
        at_(other.at_) {}
  RegisteredMemory& operator=(RegisteredMemory&&) = delete;
  ~RegisteredMemory();

  // Leaves the memory registered, to the end of the process: a stream may write there still.
  void Leave() { driver_ = nullptr; }

  // Where streams find its first byte.
  cuda::DevicePointer at() const { return at_; }

 private:
  RegisteredMemory(cuda::Driver& driver, cuda::Context context, int ordinal)
      : driver_(&driver), context_(context), ordinal_(ordinal) {}

  // Null once moved from.
  cuda::Driver* driver_;
  cuda::Context context_;
  int ordinal_;
  // Null until registered.
  void* address_ = nullptr;
  cuda::DevicePointer at_ = 0;
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_REGISTERED_MEMORY_H_
