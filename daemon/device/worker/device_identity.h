// Checks which device has one of CUDA's ordinals in this process. CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER and a missing
// device change the meaning of an ordinal.

#ifndef DAEMON_DEVICE_WORKER_DEVICE_IDENTITY_H_
#define DAEMON_DEVICE_WORKER_DEVICE_IDENTITY_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/cuda/driver.h"

namespace berth {

// Returns OK if the device at `ordinal` has the UUID `uuid`.
// Errors: NOT_FOUND with the details `kind`, `id`, `ordinal` and `found`, the UUID of the device at that ordinal; the
// driver's.
absl::Status CheckDevice(cuda::Driver& driver, int ordinal, absl::string_view uuid);

}  // namespace berth

#endif  // DAEMON_DEVICE_WORKER_DEVICE_IDENTITY_H_
