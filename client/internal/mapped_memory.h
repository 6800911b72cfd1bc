// MappedMemory is a block in this process's address space: by mmap for host blocks, by the CUDA driver for
// device blocks.

#ifndef CLIENT_INTERNAL_MAPPED_MEMORY_H_
#define CLIENT_INTERNAL_MAPPED_MEMORY_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "berth/v1/resources.pb.h"
#include "common/ipc_handle.h"

namespace berth::internal {

// Unmaps at its end. Thread-compatible.
class MappedMemory {
 public:
  virtual ~MappedMemory() = default;
  // An address of the host, or for CUDA blocks of the device.
  virtual void* address() const = 0;
  // Waits until everything that this process queued in the device's primary context is done, so that what it wrote
  // is there for others. Errors: DRIVER.
  virtual absl::Status Synchronize() = 0;
};

// Maps `fd`, which stays the caller's and can be closed afterwards, for the device with that UUID; empty is the block's
// own, and host memory is every device's.
// Errors: kResourceExhausted; kNotFound where this process does not see the device; UNSUPPORTED where the device cannot
// reach the block's, or this build cannot map memory of that kind; kDataLoss if the fd is not the size that the daemon
// says.
absl::StatusOr<std::unique_ptr<MappedMemory>> MapMemory(const v1::Block& block, int fd, bool read_only,
                                                        const std::string& device = "");

// The same by a handle; `folder` is the daemon's run folder as this process sees it.
absl::StatusOr<std::unique_ptr<MappedMemory>> OpenMemory(const v1::Block& block, const IpcHandle& handle,
                                                         const std::string& folder,
                                                         const std::string& device = "");

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_MAPPED_MEMORY_H_
