// The clears check: whether a device's driver clears memory between one owner and the next. Berth hands memory from
// tenant to tenant by giving it back to the driver and asking for new, so it is looked at before any is.

#ifndef DAEMON_DEVICE_CLEARS_CHECK_H_
#define DAEMON_DEVICE_CLEARS_CHECK_H_

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "common/bytes.h"
#include "common/cuda/driver.h"
#include "daemon/device/device_record.h"

namespace berth {

// What is written and looked at. The context that it takes costs 0.5 GiB more, until the process ends.
inline constexpr Bytes kClearsCheckBytes = GiB(1);

// Fills `bytes` of the device with a pattern, gives them back, and reads as much anew, from the first byte to the last:
// what is not zero is stale. In the device's primary context, so for a process of its own, which ends afterwards; calls
// `in_context` once the context is there and has nothing in it yet.
// Requires: `bytes` is a multiple of 64 MiB.
// Returns: kClear or kStale; kNotTried if the device is for one process at a time, or a call of the driver's failed.
ClearsFinding CheckClears(cuda::Driver& driver, int ordinal, Bytes bytes, absl::FunctionRef<void()> in_context);

// kNotTried, because of `why`.
ClearsFinding ClearsNotTried(absl::string_view why);

}  // namespace berth

#endif  // DAEMON_DEVICE_CLEARS_CHECK_H_
