// Which of this process's devices a block is mapped for. Devices are known by UUID everywhere; ordinals are a process's
// own (CUDA_VISIBLE_DEVICES).

#ifndef CLIENT_INTERNAL_DEVICE_CHOICE_H_
#define CLIENT_INTERNAL_DEVICE_CHOICE_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/cuda/driver.h"

namespace berth::internal {

// This process's ordinal of `wanted`, which maps memory of device `own`; empty is `own` itself. Whether a device that
// this process does not see can be reached is found out by trying.
// Errors: NOT_FOUND for a device that this process does not see; UNSUPPORTED for one that cannot reach the memory.
absl::StatusOr<int> ChooseDevice(cuda::Driver& driver, absl::string_view own, absl::string_view wanted);

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_DEVICE_CHOICE_H_
