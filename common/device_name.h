// Resolves device names, and applies CUDA_VISIBLE_DEVICES to the node's devices. Pure.

#ifndef COMMON_DEVICE_NAME_H_
#define COMMON_DEVICE_NAME_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace berth {

// Begins the text in place of the UUID of a device that the driver has not identified; the device's ordinal follows.
inline constexpr absl::string_view kUnidentifiedDevice = "unknown-";

// A device's ordinal and UUID.
using DeviceLabel = std::pair<uint32_t, absl::string_view>;

// Returns whether CUDA_VISIBLE_DEVICES applies to the device: its UUID is that of a GPU or a MIG instance.
bool IsCudaDevice(absl::string_view uuid);

// Returns the ordinal of the device that `name` identifies: its ordinal ("3"), its UUID, or a prefix of a UUID that no
// other device shares. Errors: NOT_FOUND; INVALID_FIELD (ambiguous prefix). Both name the devices.
absl::StatusOr<uint32_t> FindDeviceByName(const std::vector<DeviceLabel>& devices, absl::string_view name);

// Parses a CUDA_VISIBLE_DEVICES value into names for FindDeviceByName(). CUDA uses the entries before the first invalid
// entry: none for "", "-1" and Slurm's "NoDevFiles". Source: CUDA C++ Programming Guide, "CUDA Environment Variables".
// Errors: INVALID_FIELD naming an entry that is neither an ordinal nor a UUID of a GPU or MIG device.
absl::StatusOr<std::vector<std::string>> ParseVisibleDevices(absl::string_view text);

// Returns the devices that `names` selects (all if empty) and that `visible`, a CUDA_VISIBLE_DEVICES value, permits if
// set. `visible` applies to devices whose UUIDs begin with GPU- or MIG-, and not to host-memory devices. The result has
// the labels and the order of `devices`. Errors: FindDeviceByName()'s; ParseVisibleDevices()'s; INVALID_FIELD for an
// entry that is no device of the node; NO_DEVICE if no device is left.
absl::StatusOr<std::vector<DeviceLabel>> DevicesAmong(const std::vector<DeviceLabel>& devices,
                                                      const std::vector<std::string>& names,
                                                      const std::optional<std::string>& visible);

}  // namespace berth

#endif  // COMMON_DEVICE_NAME_H_
