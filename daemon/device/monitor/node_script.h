// NodeScript: a simulated node for tests of everything that only reads a GPU's state. A file describes devices of the
// host backend, and how they change while the daemon runs.
//
//   refresh = "20ms"                # how often the monitor rereads the file; 1s
//   [[device]]
//   count = 4                       # number of equal devices, by default 1; ordinals follow each other
//   slices = 7                      # each is presented as this number of MIG instances
//   name = "NVIDIA H200"            # "simulated device"
//   uuid = "GPU-a"                  # with count > 1, "-0", "-1", … is appended; by default "SIM-<ordinal>"
//   capability = "9.0"              # none
//   multiprocessors = 132           # 0; likewise threads_per_multiprocessor, shared_bytes_per_block, l2_bytes
//   memory = "64MiB"                # the value of --host-bytes
//   island = 0                      # devices with the same number reach each other over NVLink; none
//   temperature = 41                # and every other metric of a device, by its name in berth.v1.Condition:
//   power = "not supported"         # a number, "not supported" or "not permitted"
//   [now.3]                         # the current state of device 3:
//   lost = true                     # the driver has lost it
//   hangs = true                    # driver calls about it never return
//   fails_self_test = "bad memory"  # it cannot be brought back into service
//   xids = [13, 31]                 # Xids that the driver reported, in that order
//   free_bytes = "10MiB"            # free memory that the driver reports; by default none
//   utilisation = 30
//   processes = [{pid = 1, bytes = "1MiB"}]
//
// The keys of [now.N] are also valid under [[device]].

#ifndef DAEMON_DEVICE_MONITOR_NODE_SCRIPT_H_
#define DAEMON_DEVICE_MONITOR_NODE_SCRIPT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <berth/bytes.h>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/device_metrics.h"

namespace berth {

struct ScriptedDevice {
  std::string uuid;
  std::string name;
  uint32_t compute_capability = 0;
  uint32_t multiprocessors = 0;
  uint32_t threads_per_multiprocessor = 0;
  uint64_t shared_bytes_per_block = 0;
  uint64_t l2_bytes = 0;
  // nullopt for the value of the daemon's flags.
  std::optional<Bytes> memory;
  std::string mig_parent;
  std::optional<uint32_t> island;
  DeviceMetrics metrics;

  bool lost = false;
  bool hangs = false;
  std::string fails_self_test;
  std::vector<uint64_t> xids;
  struct Process {
    int32_t pid = 0;
    Bytes bytes;
  };
  std::vector<Process> processes;
};

struct NodeScript {
  absl::Duration refresh = absl::Seconds(1);
  // Devices by ordinal: 1 to kMaxDeviceOrdinals of them.
  std::vector<ScriptedDevice> devices;

  // Returns the bit set of the ordinals that the device reaches over NVLink. Requires: the device exists.
  uint64_t NvlinkPeersOf(uint32_t ordinal) const;
};

// Errors: kInvalidArgument naming the file, the line and the key.
absl::StatusOr<NodeScript> ReadNodeScript(const std::string& path);

}  // namespace berth

#endif  // DAEMON_DEVICE_MONITOR_NODE_SCRIPT_H_
