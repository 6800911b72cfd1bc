// ReadProcFile: reads a small file below /proc, and distinguishes "cannot be read now" from "does not exist".

#ifndef COMMON_OS_PROC_FILE_H_
#define COMMON_OS_PROC_FILE_H_

#include <string>

#include "absl/status/statusor.h"

namespace berth {

// Reads at most the first 8 KiB of the file; empty if /proc does not show it to this process.
// Errors: kResourceExhausted if the kernel lacked an fd or memory, which says nothing about the file. Retry.
absl::StatusOr<std::string> ReadProcFile(const std::string& path);

}  // namespace berth

#endif  // COMMON_OS_PROC_FILE_H_
