// The monitor: a process that reads the drivers of all devices, again and again, and says what they say. Each device
// has a thread of its own, so that a driver that hangs for one keeps nobody from the others; the process has no
// context and no device memory, and it is nobody's loss: whoever kills it gets another one.

#ifndef DAEMON_DEVICE_MONITOR_H_
#define DAEMON_DEVICE_MONITOR_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/device/device_meter.h"
#include "daemon/device/device_record.h"

namespace berth {

// Of the records the one at `index`.
using MeterMaker =
    std::function<std::unique_ptr<DeviceMeter>(const std::vector<DeviceRecord>&, size_t index)>;

// Hands the table of `count` devices to the monitor at the other end. Errors: the system's.
absl::Status SendDevices(int socket, int table, uint32_t count);

// Takes the devices from `socket`, then sends Readings and Surveys (daemon/device/monitor_wire.h) until the other end
// has hung up. A message that the socket does not take at once is left out: the next one says more. Returns: OK when
// it has hung up; threads may be stuck in a driver then, so that the process is to end without waiting for them.
// Errors: kInternal if the first message is none of the devices; the system's.
absl::Status ServeMonitor(int socket, const MeterMaker& make);

}  // namespace berth

#endif  // DAEMON_DEVICE_MONITOR_H_
