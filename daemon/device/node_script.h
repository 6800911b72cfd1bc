// NodeScript: a node that is not there: devices of the host backend as a file describes them, and what becomes of them
// while the daemon runs, for tests of everything that needs a GPU only to be looked at.
//
//   refresh = "20ms"                # how often the monitor reads the file anew; 1s
//   [[device]]
//   count = 4                       # as many alike, by default 1; ordinals follow each other
//   slices = 7                      # each is presented as so many MIG instances
//   name = "NVIDIA H200"            # "simulated device"
//   uuid = "GPU-a"                  # with several, "-0", "-1", … is added; by default "SIM-<ordinal>"
//   capability = "9.0"              # none
//   multiprocessors = 132           # 0; so threads_per_multiprocessor, shared_bytes_per_block, l2_bytes
//   memory = "64MiB"                # what --host-bytes says
//   island = 0                      # those with the same number reach each other over NVLink; none
//   temperature = 41                # and every other figure of a device, by its name in berth.v1.Condition:
//   power = "not supported"         # a number, "not supported" or "not permitted"
//   [now.3]                         # what is now of device 3:
//   lost = true                     # the driver has lost it
//   hangs = true                    # the driver answers nothing any more about it
//   fails_self_test = "bad memory"  # it does not come back into service
//   xids = [13, 31]                 # what the driver reported, in that order
//   free_bytes = "10MiB"            # what the driver says is free; by default it does not say
//   utilisation = 30
//   processes = [{pid = 1, bytes = "1MiB"}]
//
// What stands under [now.N] may stand under [[device]], too.

#ifndef DAEMON_DEVICE_NODE_SCRIPT_H_
#define DAEMON_DEVICE_NODE_SCRIPT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/bytes.h"
#include "common/device_figures.h"

namespace berth {

struct ScriptedDevice {
  std::string uuid;
  std::string name;
  uint32_t compute_capability = 0;
  uint32_t multiprocessors = 0;
  uint32_t threads_per_multiprocessor = 0;
  uint64_t shared_bytes_per_block = 0;
  uint64_t l2_bytes = 0;
  // Nothing for what the daemon's flags say.
  std::optional<Bytes> memory;
  std::string mig_parent;
  std::optional<uint32_t> island;
  DeviceFigures figures;

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
  // By ordinal: 1 to kMaxDeviceOrdinals.
  std::vector<ScriptedDevice> devices;

  // Ordinals of those that the device reaches over NVLink, a bit each. Requires: there is such a device.
  uint64_t NvlinkPeersOf(uint32_t ordinal) const;
};

// Errors: kInvalidArgument naming the file, the line and the key.
absl::StatusOr<NodeScript> ReadNodeScript(const std::string& path);

}  // namespace berth

#endif  // DAEMON_DEVICE_NODE_SCRIPT_H_
