// The memory-scrub check: whether a device's driver clears memory between one owner and the next. Berth passes memory
// between tenants by freeing it to the driver and allocating it anew. The check therefore runs before any memory is
// leased.

#ifndef DAEMON_DEVICE_MEMORY_MEMORY_SCRUB_CHECK_H_
#define DAEMON_DEVICE_MEMORY_MEMORY_SCRUB_CHECK_H_

#include <berth/bytes.h>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "common/cuda/driver.h"
#include "daemon/device/monitor/device_record.h"

namespace berth {

// Bytes that the check writes and reads. The check's context takes 0.5 GiB more, until the process ends.
inline constexpr Bytes kMemoryScrubBytes = GiB(1);

// Fills `bytes` of the device with a pattern, frees them, allocates as many again, and reads these from the first byte
// to the last. A non-zero value is stale. Uses the device's primary context, so it needs a process of its own, which
// ends afterwards. Calls `in_context` once the context exists and is still empty.
// Requires: `bytes` is a multiple of 64 MiB.
// Returns: kClear or kStale; kNotTried if the device is limited to one process at a time, or a driver call failed.
ScrubFinding CheckScrub(cuda::Driver& driver, int ordinal, Bytes bytes, absl::FunctionRef<void()> in_context);

// Returns kNotTried, with the reason `why`.
ScrubFinding ScrubNotTried(absl::string_view why);

}  // namespace berth

#endif  // DAEMON_DEVICE_MEMORY_MEMORY_SCRUB_CHECK_H_
