// Selects the device of this process for which a block is mapped. UUIDs identify devices everywhere; ordinals are valid
// within one process only (CUDA_VISIBLE_DEVICES).

#ifndef CLIENT_SDK_DEVICES_DEVICE_CHOICE_H_
#define CLIENT_SDK_DEVICES_DEVICE_CHOICE_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/cuda/driver.h"

namespace berth::internal {

// Returns this process's ordinal of the device `wanted`, for a mapping of memory on device `own`; an empty `wanted`
// means `own`. If this process does not see `own`, the mapping itself shows whether `wanted` can reach it.
// Errors: NOT_FOUND where this process does not see the device; UNSUPPORTED where the device cannot reach the memory.
absl::StatusOr<int> ChooseDevice(cuda::Driver& driver, absl::string_view own, absl::string_view wanted);

}  // namespace berth::internal

#endif  // CLIENT_SDK_DEVICES_DEVICE_CHOICE_H_
