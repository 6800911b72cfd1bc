// The monitor: a process that repeatedly reads the drivers of all devices and sends the results. Each device has its
// own thread, so that a driver that hangs for one device does not delay the others. The process has no context, no
// device memory and no state to lose: whenever it is killed, another monitor starts.

#ifndef DAEMON_DEVICE_MONITOR_MONITOR_H_
#define DAEMON_DEVICE_MONITOR_MONITOR_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/device/monitor/device_meter.h"
#include "daemon/device/monitor/device_record.h"

namespace berth {

// Makes the meter for the record at `index`.
using MeterMaker =
    std::function<std::unique_ptr<DeviceMeter>(const std::vector<DeviceRecord>&, size_t index)>;

// Sends the table of `count` devices to the monitor at the other end. Errors: the system's.
absl::Status SendDevices(int socket, int table, uint32_t count);

// Receives the devices from `socket`, then sends Readings and Surveys (daemon/device/monitor/monitor_wire.h) until the
// other end has hung up. Drops a message that the socket does not take at once: the next one is newer. Returns: OK
// after the hang-up; threads may then be stuck in a driver, so the process must end without waiting for them.
// Errors: kInternal if the first message does not contain the devices; the system's.
absl::Status ServeMonitor(int socket, const MeterMaker& make);

}  // namespace berth

#endif  // DAEMON_DEVICE_MONITOR_MONITOR_H_
