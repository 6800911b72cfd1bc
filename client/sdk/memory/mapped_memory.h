// MappedMemory is a block mapped into this process's address space: by mmap for host blocks, by the CUDA driver for
// device blocks.

#ifndef CLIENT_SDK_MEMORY_MAPPED_MEMORY_H_
#define CLIENT_SDK_MEMORY_MAPPED_MEMORY_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/wire/ipc_handle.h"

namespace berth::v1 {
class Block;
}  // namespace berth::v1

namespace berth::internal {

// The destructor unmaps. Thread-compatible.
class MappedMemory {
 public:
  virtual ~MappedMemory() = default;
  // Host address, or for CUDA blocks device address.
  virtual void* address() const = 0;
  // Waits until all work that this process queued in the device's primary context is done, so that others see its
  // writes. Errors: DRIVER.
  virtual absl::Status Synchronize() = 0;
};

// Maps `fd` for the device with UUID `device`. `fd` remains the caller's and can be closed afterwards. Empty `device`:
// the block's own device. Host memory can be mapped for any device.
// Errors: kResourceExhausted; kNotFound where this process does not see the device; UNSUPPORTED where the device cannot
// reach the block's device, or this build cannot map memory of that kind; kDataLoss if the fd's size differs from the
// daemon's value.
absl::StatusOr<std::unique_ptr<MappedMemory>> MapMemory(const v1::Block& block, int fd, bool read_only,
                                                        const std::string& device = "");

// As MapMemory(), but by a handle. `folder` is the daemon's run folder as this process sees it.
absl::StatusOr<std::unique_ptr<MappedMemory>> OpenMemory(const v1::Block& block, const IpcHandle& handle,
                                                         const std::string& folder,
                                                         const std::string& device = "");

}  // namespace berth::internal

#endif  // CLIENT_SDK_MEMORY_MAPPED_MEMORY_H_
