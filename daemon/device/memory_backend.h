// MemoryBackend makes the memory of blocks. A block is an fd: who maps it, who else keeps it and when it is
// closed last is not the backend's business, so it keeps nothing of what it made.
//
//   BERTH_ASSIGN_OR_RETURN(UniqueFd fd, backend->Create(MiB(2)));

#ifndef DAEMON_DEVICE_MEMORY_BACKEND_H_
#define DAEMON_DEVICE_MEMORY_BACKEND_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/bytes.h"
#include "common/unique_fd.h"
#include "daemon/device/device_record.h"

namespace berth {

// MemoryBackend is thread-compatible: a worker has one thread. Every implementation passes
// memory_backend_conformance.h.
class MemoryBackend {
 public:
  virtual ~MemoryBackend() = default;

  // Makes `bytes` of memory that reads as zeroes and lives until the last fd and the last mapping of it are
  // gone, whatever becomes of this process.
  // Errors: INVALID_FIELD if `bytes` is 0 or no multiple of granularity(); OUT_OF_MEMORY if the device has
  // not that much; DRIVER else. Nothing is left behind after an error.
  virtual absl::StatusOr<UniqueFd> Create(Bytes bytes) = 0;

  // Sizes are multiples of this; itself a multiple of kBlockGranularity.
  virtual Bytes granularity() const = 0;

  virtual BackendKind kind() const = 0;
};

// Refuses a size that no backend takes: 0, or not a multiple of `granularity`.
absl::Status ValidateBlockSize(Bytes bytes, Bytes granularity);

// Refuses a size that the device `uuid` has not even when it is empty, without asking its driver.
absl::Status RefuseMoreThan(const std::string& uuid, Bytes bytes, Bytes total);

}  // namespace berth

#endif  // DAEMON_DEVICE_MEMORY_BACKEND_H_
