// FindDevice: finds the device that a user names. RetainVisible: limits a list to the devices that this process may
// use.

#ifndef CLIENT_CLI_DEVICE_NAME_H_
#define CLIENT_CLI_DEVICE_NAME_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/resources.pb.h"
#include "client/sdk/admin/inspector.h"

namespace berth::cli {

// Finds the device by its ordinal ("3"), its UUID, or a unique prefix of its UUID.
// Errors: kInvalidArgument naming the text and the devices that it may mean.
// Errors: kInvalidArgument naming the text and the devices that it may mean.
absl::StatusOr<v1::Device> FindDevice(const v1::ListDevicesResponse& devices, absl::string_view name);
// As above, among the node's current devices. Errors: also those of Inspector::ListDevices().
absl::StatusOr<v1::Device> FindDevice(const Inspector& inspector, absl::string_view name);

// Removes the devices that this process may not use (berth/visible_devices.h). Errors: DevicesAmong()'s.
absl::Status RetainVisible(v1::ListDevicesResponse* devices);

}  // namespace berth::cli

#endif  // CLIENT_CLI_DEVICE_NAME_H_
