// RegisteredMemory: host memory that CUDA streams in any context of the process can access. A registration ends with
// the context that made it. Therefore it is made in a device's primary context, which is retained as long.

#ifndef CLIENT_SDK_MEMORY_REGISTERED_MEMORY_H_
#define CLIENT_SDK_MEMORY_REGISTERED_MEMORY_H_

#include <utility>

#include <berth/bytes.h>

#include "absl/status/statusor.h"
#include "common/cuda/driver.h"

namespace berth::internal {

// Move-only; the destructor unregisters. Thread-compatible.
class RegisteredMemory {
 public:
  // Registers whole pages, which remain the caller's and must outlive this object. Takes some 0.2 ms and requires a
  // current context: the registration uses the primary context of that context's device. The thread's current context
  // is unchanged afterwards.
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

  // Leaves the memory registered until the end of the process, because a stream may still write there.
  void Leave() { driver_ = nullptr; }

  // Address of the first byte for CUDA streams.
  cuda::DevicePointer at() const { return at_; }

 private:
  RegisteredMemory(cuda::Driver& driver, cuda::Context context, int ordinal)
      : driver_(&driver), context_(context), ordinal_(ordinal) {}

  // Null after a move.
  cuda::Driver* driver_;
  cuda::Context context_;
  int ordinal_;
  // Null until registered.
  void* address_ = nullptr;
  cuda::DevicePointer at_ = 0;
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_MEMORY_REGISTERED_MEMORY_H_
