// The self-test of a device that was out of service: whether its memory takes what is written, before anything is
// leased on it again. Runs in a process of its own, which has the context that it needs and takes it along when it
// ends.

#ifndef DAEMON_DEVICE_SELF_TEST_H_
#define DAEMON_DEVICE_SELF_TEST_H_

#include <string>

#include "absl/status/status.h"
#include "common/bytes.h"
#include "common/cuda/driver.h"
#include "daemon/device/memory_resource.h"

namespace berth {

// What is written and read back, where the device has so much free.
inline constexpr Bytes kSelfTestBytes = MiB(64);

// Writes two patterns over `bytes` of the device, one after the other, and reads them back. `bytes` is a multiple of 2
// MiB. Errors: the driver's; kInternal for memory that says something else. OK without a look where the device is for
// one process at a time.
absl::Status TestCudaDevice(cuda::Driver& driver, int ordinal, Bytes bytes);

// Makes a block of `resource`, and gives it back. Errors: the resource's.
absl::Status TestBackend(MemoryResource& resource);

}  // namespace berth

#endif  // DAEMON_DEVICE_SELF_TEST_H_
