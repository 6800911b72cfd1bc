// Anonymous memory files: mode 0400 and sealed, so that who gets a read-only fd cannot make a writable one of it.

#ifndef COMMON_MEMFD_H_
#define COMMON_MEMFD_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/unique_fd.h"

namespace berth {

// Makes a memfd of `size`, mode 0400, close-on-exec, sealable, never executable where the kernel can say so.
// Errors: kResourceExhausted, kInternal.
absl::StatusOr<UniqueFd> CreateMemfd(const char* name, size_t size);

// Adds seals against growing, shrinking and further seals, and `more` (e.g. F_SEAL_WRITE).
absl::Status SealMemfd(int fd, int more = 0);

// A new open file of the same memory that can only be read. Root reopens anything read-write: the promise is for
// others.
absl::StatusOr<UniqueFd> ReopenReadOnly(int fd);

}  // namespace berth

#endif  // COMMON_MEMFD_H_
