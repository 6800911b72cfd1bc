// The inventory: which devices this node has, found in a process of its own that ends afterwards, so that
// neither the vault nor the broker ever loads a driver.

#ifndef DAEMON_DEVICE_INVENTORY_H_
#define DAEMON_DEVICE_INVENTORY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/bytes.h"
#include "daemon/device/device_record.h"

namespace berth {

struct InventoryOptions {
  BackendChoice backend = BackendChoice::kAuto;
  // Host devices, where those are used: 1 to 64.
  uint32_t host_devices = 1;
  // Bytes of each; 0 means half of what is available, at most 8 GiB.
  Bytes host_bytes;
  // Describes them instead (daemon/device/node_script.h); empty for none.
  std::string host_devices_file;
};

// Looks at the devices, without a context on any. Ordinals rise; one that is missing belongs to a device whose memory
// cannot be shared, which is said on stderr; and so is why kAuto has host devices. One that fails, or does not answer
// in 3 s, is there as `failed`: threads may be stuck in its driver then, so that the process is to end without waiting
// for them.
// Errors: UNSUPPORTED if kCuda is asked for and there is none; DRIVER if the driver fails as a whole; kInvalidArgument
// for a file that describes no devices.
absl::StatusOr<std::vector<DeviceRecord>> TakeInventory(const InventoryOptions& options);

// Writes the records to `fd`, one after the other.
absl::Status WriteInventory(int fd, const std::vector<DeviceRecord>& records);

}  // namespace berth

#endif  // DAEMON_DEVICE_INVENTORY_H_
