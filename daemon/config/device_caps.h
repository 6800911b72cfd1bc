// ResolveDeviceCaps: the devices that the keys of a pool's `device_caps` name in the configuration file. Pure.

#ifndef DAEMON_CONFIG_DEVICE_CAPS_H_
#define DAEMON_CONFIG_DEVICE_CAPS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/device/monitor/device_record.h"

namespace berth {

// Units by device name (common/device_name.h).
using DeviceCaps = std::map<std::string, uint64_t>;

struct ResolvedDeviceCaps {
  // By UUID. The name of an absent device stays as it is: its cap takes effect once a daemon finds the device.
  DeviceCaps caps;
  // A text for each name of a device that may only be absent for now. Such a name is a full UUID, or any name while the
  // driver has not identified every device.
  std::vector<std::string> absent;
  // The first wrong name, or OK. Errors: kInvalidArgument if no device has the name and the name is no full UUID, if
  // several devices have it, or if another name is of the same device. The least of such caps then applies.
  absl::Status mistake;
};

ResolvedDeviceCaps ResolveDeviceCaps(const DeviceCaps& caps, const std::vector<DeviceRecord>& devices);

}  // namespace berth

#endif  // DAEMON_CONFIG_DEVICE_CAPS_H_
