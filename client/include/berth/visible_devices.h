// VisibleDevices: the devices that this process's environment lets it choose from.

#ifndef BERTH_VISIBLE_DEVICES_H_
#define BERTH_VISIBLE_DEVICES_H_

#include <optional>
#include <string>

#include "absl/functional/function_ref.h"

namespace berth {

// `berth run` names a command's devices in CUDA_VISIBLE_DEVICES and, with the same value, in this variable.
inline constexpr char kDeviceVariable[] = "BERTH_DEVICE";
// The bound of `berth run` itself, which its command can no longer see in CUDA_VISIBLE_DEVICES.
inline constexpr char kVisibleVariable[] = "BERTH_VISIBLE_DEVICES";

// Returns the CUDA_VISIBLE_DEVICES that bounds this process's requests; empty without a bound. A job scheduler, a
// container or a person has set it. A value set by `berth run` names the devices that the process already has, and
// bounds nothing: then the bound of `berth run` itself applies. `variable_of` returns a variable's value, or null.
std::optional<std::string> VisibleDevices(absl::FunctionRef<const char*(const char*)> variable_of);
// As above, for this process. Reads the environment, which no other thread may change meanwhile.
std::optional<std::string> VisibleDevices();

}  // namespace berth

#endif  // BERTH_VISIBLE_DEVICES_H_
