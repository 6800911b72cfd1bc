// DeviceMeter: what a device's driver says of it just now: its memory, the processes that use it, and whether it is
// at anything. Needs no context.

#ifndef DAEMON_DEVICE_DEVICE_METER_H_
#define DAEMON_DEVICE_DEVICE_METER_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/cuda/nvml.h"
#include "common/unique_fd.h"
#include "daemon/device/worker_wire.h"

namespace berth {

// One caller at a time.
class DeviceMeter {
 public:
  virtual ~DeviceMeter() = default;
  // Errors: the driver's.
  virtual absl::StatusOr<worker::Reading> Read() = 0;
  // Between two readings.
  virtual absl::Duration interval() const { return absl::Seconds(1); }
};

// By NVML, which must outlive it. Processes whose parent is `daemon` are the daemon's own.
std::unique_ptr<DeviceMeter> NewNvmlMeter(cuda::Nvml* nvml, std::string uuid, pid_t daemon);

// For tests on machines without a GPU: what the file at `path` says of device `ordinal`, read each time anew:
//   ORDINAL memory TOTAL FREE
//   ORDINAL utilisation PERCENT
//   ORDINAL process PID BYTES
// A file that is not there, or says nothing of the device's memory, is an error: as if the driver did not answer.
std::unique_ptr<DeviceMeter> NewScriptedMeter(std::string path, uint32_t ordinal, pid_t daemon);

// Reads a meter and sends what it says on the worker's socket, beside the worker's own answers, from a thread of
// its own: whatever the worker waits for in the driver. A reading that the socket does not take is left out; so is
// one that fails.
class MeterLoop {
 public:
  // `socket` must outlive it.
  static absl::StatusOr<std::unique_ptr<MeterLoop>> Start(int socket, std::unique_ptr<DeviceMeter> meter);
  ~MeterLoop();
  MeterLoop(const MeterLoop&) = delete;
  MeterLoop& operator=(const MeterLoop&) = delete;

 private:
  MeterLoop(int socket, std::unique_ptr<DeviceMeter> meter, UniqueFd stop);
  void Run();

  const int socket_;
  const std::unique_ptr<DeviceMeter> meter_;
  const UniqueFd stop_;
  std::thread thread_;
};

}  // namespace berth

#endif  // DAEMON_DEVICE_DEVICE_METER_H_
