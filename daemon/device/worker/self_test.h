// The self-test of a device that was out of service: whether its memory stores written data, before the device is
// leased again. Runs in its own process, which has the required context and ends with it.

#ifndef DAEMON_DEVICE_WORKER_SELF_TEST_H_
#define DAEMON_DEVICE_WORKER_SELF_TEST_H_

#include <string>

#include <berth/bytes.h>

#include "absl/status/status.h"
#include "common/cuda/driver.h"
#include "daemon/device/memory/memory_resource.h"

namespace berth {

// Bytes written and read back, if the device has so many free.
inline constexpr Bytes kSelfTestBytes = MiB(64);

// Writes two patterns over `bytes` of the device, one after the other, and reads each back. `bytes` is a multiple of 2
// MiB. Errors: the driver's; kInternal if the memory reads differently. Returns OK without a test if the device is
// limited to one process at a time.
absl::Status TestCudaDevice(cuda::Driver& driver, int ordinal, Bytes bytes);

// Allocates a block of `resource` and frees it. Errors: the resource's.
absl::Status TestBackend(MemoryResource& resource);

}  // namespace berth

#endif  // DAEMON_DEVICE_WORKER_SELF_TEST_H_
