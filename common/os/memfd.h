// Anonymous memory files: mode 0400 and sealed, so that a process with a read-only fd cannot reopen it for writing.

#ifndef COMMON_OS_MEMFD_H_
#define COMMON_OS_MEMFD_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"

namespace berth {

// Creates a memfd of `size`, mode 0400, close-on-exec, sealable, and non-executable if the kernel supports that.
// Errors: kResourceExhausted, kInternal.
absl::StatusOr<UniqueFd> CreateMemfd(const char* name, size_t size);

// Adds seals against growing, shrinking and further seals, and `more` (e.g. F_SEAL_WRITE).
absl::Status SealMemfd(int fd, int more = 0);

// Returns a new read-only open file of the same memory. Root can reopen any such file read-write: the protection
// applies to other users.
absl::StatusOr<UniqueFd> ReopenReadOnly(int fd);

}  // namespace berth

#endif  // COMMON_OS_MEMFD_H_
