// The inventory: finds the node's devices in a process of its own that ends afterwards. Neither the supervisor nor the
// broker therefore ever loads a driver.

#ifndef DAEMON_DEVICE_MONITOR_INVENTORY_H_
#define DAEMON_DEVICE_MONITOR_INVENTORY_H_

#include <cstdint>
#include <string>
#include <vector>

#include <berth/bytes.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/device/monitor/device_record.h"

namespace berth {

struct InventoryOptions {
  BackendChoice backend = BackendChoice::kAuto;
  // Number of host devices, if host devices are used: 1 to 64.
  uint32_t host_devices = 1;
  // Bytes of each; 0 means half of the available memory, at most 8 GiB.
  Bytes host_bytes;
  // File that describes the host devices instead (daemon/device/monitor/node_script.h); empty for none.
  std::string host_devices_file;
};

// Finds the devices without a context on any. A GPU's ordinal is its place in PCI order among the node's GPUs, also if
// CUDA_VISIBLE_DEVICES hides some of them from this process. Ordinals rise; a missing ordinal is a hidden device, or a
// device whose memory cannot be shared. Logs each of the latter to stderr, and also why kAuto selected host devices. A
// device that fails, or does not answer in 3 s, is listed with its fault. Threads may then be stuck in its driver, so
// the process must end without waiting for them. A driver that fails as a whole or lists no device is one record with
// fault kNoDriver: for kCuda always, for kAuto if a libcuda is installed.
// Requires: CUDA_DEVICE_ORDER is PCI_BUS_ID in this process.
// Errors: kInvalidArgument for a file that describes no devices; kResourceExhausted without threads.
absl::StatusOr<std::vector<DeviceRecord>> TakeInventory(const InventoryOptions& options);

// Returns the inventory that counts if the driver ends or holds up the process before TakeInventory() returns: a record
// with fault kNoDriver. Empty if no driver is called.
std::vector<DeviceRecord> ProvisionalInventory(const InventoryOptions& options);

// Replaces the content of the file `fd` by the records.
absl::Status WriteInventory(int fd, const std::vector<DeviceRecord>& records);

}  // namespace berth

#endif  // DAEMON_DEVICE_MONITOR_INVENTORY_H_
