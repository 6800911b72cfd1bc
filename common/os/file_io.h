// ReadToEnd, WriteAll: read or write whole contents through a file descriptor.

#ifndef COMMON_OS_FILE_IO_H_
#define COMMON_OS_FILE_IO_H_

#include <cstddef>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace berth {

// Reads from the file's offset to its end, or until it has `enough` bytes: some files report no size, or grow.
// `name` is for errors. Errors: those of read().
absl::StatusOr<std::string> ReadToEnd(int fd, absl::string_view name,
                                      size_t enough = std::numeric_limits<size_t>::max());

// Writes all of `bytes` at the file's offset. A failure may leave a part written. `name` is for errors.
// Errors: those of write(), kResourceExhausted if the disk is full.
absl::Status WriteAll(int fd, absl::string_view bytes, absl::string_view name);

}  // namespace berth

#endif  // COMMON_OS_FILE_IO_H_
