// The reason why a process has no CUDA device, as a value for programs that continue without one.

#ifndef CLIENT_SDK_DEVICES_DRIVER_ABSENCE_H_
#define CLIENT_SDK_DEVICES_DRIVER_ABSENCE_H_

#include <optional>

#include <berth/device_policy.h>

#include "absl/status/status.h"

namespace berth::internal {

// Converts the status of cuda::Driver::Get(): no driver, or a driver without devices. Returns nullopt where the driver
// is present, and where it fails, because a failure is a fault.
std::optional<Absence> AbsenceOfDriver(const absl::Status& driver);

// Returns the reason why a caller has no CUDA device on a node whose devices are host memory. The reason is what keeps
// this process from CUDA, or else that the devices are host memory.
Absence AbsenceOnHostMemory(const absl::Status& driver);

}  // namespace berth::internal

#endif  // CLIENT_SDK_DEVICES_DRIVER_ABSENCE_H_
