// Finds a device in this process by its UUID. CUDA's ordinals are no identity: CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER
// and a missing device change their meaning.

#ifndef DAEMON_DEVICE_WORKER_DEVICE_IDENTITY_H_
#define DAEMON_DEVICE_WORKER_DEVICE_IDENTITY_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/cuda/driver.h"

namespace berth {

// Returns CUDA's ordinal in this process of the device with the UUID `uuid`. Asks at `likely` first, the device's
// ordinal on the node: another device may not answer.
// Errors: NOT_FOUND with the details `kind` and `id`; the driver's for a device that did not report its UUID.
absl::StatusOr<int> FindCudaOrdinal(cuda::Driver& driver, uint32_t likely, absl::string_view uuid);

}  // namespace berth

#endif  // DAEMON_DEVICE_WORKER_DEVICE_IDENTITY_H_
