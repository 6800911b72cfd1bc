// DeviceMeter: what a device's driver says of it just now: its memory and the processes that use it, how it is, and
// what happened to it. Needs no context.

#ifndef DAEMON_DEVICE_DEVICE_METER_H_
#define DAEMON_DEVICE_DEVICE_METER_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/bytes.h"
#include "daemon/device/device_record.h"
#include "daemon/device/monitor_wire.h"

namespace berth {

// One caller at a time. A call may hang as long as the driver does.
class DeviceMeter {
 public:
  virtual ~DeviceMeter() = default;
  // Errors: the driver's.
  virtual absl::StatusOr<monitor::Reading> Read() = 0;
  // Never fails: what cannot be read says why.
  virtual monitor::Survey Survey() = 0;
  // Whether only another process can read on: the driver that this one began with is no more.
  virtual bool past_use() const { return false; }
  // Between two readings.
  virtual absl::Duration interval() const { return absl::Seconds(1); }
};

// By NVML, of the device of `records` that stands at `index`. Processes whose parent is `daemon` are the daemon's own.
std::unique_ptr<DeviceMeter> NewNvmlMeter(const std::vector<DeviceRecord>& records, size_t index,
                                          pid_t daemon);

// What the file at `path` says of a device (daemon/device/node_script.h), read each time anew. A file that cannot be
// read is a driver that fails. Where it does not say how much memory there is it is `total`.
std::unique_ptr<DeviceMeter> NewScriptedMeter(std::string path, uint32_t ordinal, Bytes total, pid_t daemon);

// ---- For meters ---------------------------------------------------------------------------------------------

// Of CLOCK_MONOTONIC.
int64_t MonotonicNanoseconds();
// Adds a process with what the kernel says of it; whom there is no room for is added up.
void AddProcess(pid_t pid, uint64_t bytes, pid_t daemon, monitor::Reading* reading);
// Writes what is wrong, zero-terminated and cut where it is too long.
void SetTrouble(absl::string_view trouble, monitor::Survey* survey);
// Whether a program that ends by it is to be looked at, and not the device.
bool IsOfAProgram(uint64_t xid);
// Judges by its figures and events how a device is that the driver has not lost. Of the events the first `forgiven`, as
// they are counted, say nothing any more.
void JudgeHealth(uint64_t forgiven, monitor::Survey* survey);

// After this Xid a GPU is not on the bus any more.
inline constexpr uint64_t kXidOffTheBus = 79;

}  // namespace berth

#endif  // DAEMON_DEVICE_DEVICE_METER_H_
