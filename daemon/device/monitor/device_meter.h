// DeviceMeter: reads from a device's driver its current memory and processes, its condition, and its events. Needs no
// context.

#ifndef DAEMON_DEVICE_MONITOR_DEVICE_METER_H_
#define DAEMON_DEVICE_MONITOR_DEVICE_METER_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <berth/bytes.h>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/device/monitor/device_record.h"
#include "daemon/device/monitor/monitor_wire.h"

namespace berth {

// One caller at a time. A call may hang as long as the driver hangs.
class DeviceMeter {
 public:
  virtual ~DeviceMeter() = default;
  // Errors: the driver's.
  virtual absl::StatusOr<monitor::Reading> Read() = 0;
  // Never fails: each value that cannot be read has the reason.
  virtual monitor::Survey Survey() = 0;
  // Whether only another process can continue to read: the driver that this process began with is gone.
  virtual bool past_use() const { return false; }
  // Pause between two readings.
  virtual absl::Duration interval() const { return absl::Seconds(1); }
};

// Makes a meter that reads by NVML the device of `records` at `index`. Processes whose parent is `daemon` count as the
// daemon's own.
std::unique_ptr<DeviceMeter> NewNvmlMeter(const std::vector<DeviceRecord>& records, size_t index,
                                          pid_t daemon);

// Makes a meter that reads a device from the script file at `path` (daemon/device/monitor/node_script.h), again on each
// call. An unreadable file acts as a failing driver. `total` is the memory size if the file gives none.
std::unique_ptr<DeviceMeter> NewScriptedMeter(std::string path, uint32_t ordinal, Bytes total, pid_t daemon);

// ---- For meters ---------------------------------------------------------------------------------------------

// Returns the time of CLOCK_MONOTONIC, in nanoseconds.
int64_t MonotonicNanoseconds();
// Adds a process with the kernel's data on it; without a free place adds only its bytes to `rest`.
void AddProcess(pid_t pid, uint64_t bytes, pid_t daemon, monitor::Reading* reading);
// Writes the text, zero-terminated and truncated if too long.
void SetTrouble(absl::string_view trouble, monitor::Survey* survey);
// Returns whether the Xid indicates a fault of a program, not of the device.
bool IsOfAProgram(uint64_t xid);
// Sets the health of a device that the driver has not lost, by its metrics and events. Ignores events with numbers up
// to `forgiven`.
void JudgeHealth(uint64_t forgiven, monitor::Survey* survey);

// The Xid after which a GPU has left the bus.
inline constexpr uint64_t kXidOffTheBus = 79;

}  // namespace berth

#endif  // DAEMON_DEVICE_MONITOR_DEVICE_METER_H_
