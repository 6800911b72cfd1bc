// Why a process has no device of CUDA's, as a value: what a program that goes on without one is told.

#ifndef CLIENT_INTERNAL_DRIVER_ABSENCE_H_
#define CLIENT_INTERNAL_DRIVER_ABSENCE_H_

#include <optional>

#include "absl/status/status.h"
#include "client/device_policy.h"

namespace berth::internal {

// Of what cuda::Driver::Get() says: no driver, or none that has a device. Nothing where it is there, or fails, which is
// a fault.
std::optional<Absence> AbsenceOfDriver(const absl::Status& driver);

// Of a node whose devices are host memory, where that will not do: what keeps this process from CUDA, and where nothing
// does, that.
Absence AbsenceOnHostMemory(const absl::Status& driver);

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_DRIVER_ABSENCE_H_
