// ProcessStart: a process's start time, which distinguishes it from a later process with the same pid.

#ifndef COMMON_OS_PROCESS_START_H_
#define COMMON_OS_PROCESS_START_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"

namespace berth {

// Returns the start time of a process, in clock ticks since boot (field 22 of /proc/PID/stat), as this process's time
// namespace counts them. Two processes share pid and start time only if the kernel hands out every pid within one tick
// (10 ms). Returns nothing if the process has ended or its /proc entry is unreadable.
// Errors: kResourceExhausted for want of fds or memory, which says nothing about the process. Retry.
absl::StatusOr<std::optional<uint64_t>> StartTicksOf(int32_t pid);

// Returns the inode of this process's PID namespace, which distinguishes it from others of the same boot.
absl::StatusOr<uint64_t> ReadPidNamespace();

// Opens a pidfd of the process that has `pid` now. Does not block. Errors: kNotFound if no process has it; those of
// pidfd_open.
absl::StatusOr<UniqueFd> OpenProcess(int32_t pid);

// Opens a pidfd of the process that had `pid` and started at `start_ticks`. Does not block.
// Errors: kNotFound if no process has the pid, or if another process has it now; kFailedPrecondition if /proc does not
// show the start time of a living process; kResourceExhausted if a read of /proc lacks fds or memory; those of
// pidfd_open.
absl::StatusOr<UniqueFd> OpenProcessStartedAt(int32_t pid, uint64_t start_ticks);

}  // namespace berth

#endif  // COMMON_OS_PROCESS_START_H_
