// Which device stands at one of CUDA's ordinals in this process: CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER and a device
// that is gone change what an ordinal means.

#ifndef DAEMON_DEVICE_DEVICE_IDENTITY_H_
#define DAEMON_DEVICE_DEVICE_IDENTITY_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/cuda/driver.h"

namespace berth {

// OK where it is the one with `uuid`.
// Errors: NOT_FOUND with the figures `kind`, `id`, `ordinal` and `found`, the UUID of the one that is there; the
// driver's.
absl::Status CheckDevice(cuda::Driver& driver, int ordinal, absl::string_view uuid);

}  // namespace berth

#endif  // DAEMON_DEVICE_DEVICE_IDENTITY_H_
