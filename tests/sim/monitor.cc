// The monitor's reports about devices: their drivers' allocations and the processes that have them, and whether a
// monitor runs.

#include "tests/sim/simulation.h"

namespace berth::core {

void Simulation::Monitor() {
  if (Chance(10)) return Chance(70) ? core_->MonitorUp(now_, &effects_) : core_->MonitorDown(now_, &effects_);
  const uint32_t device = static_cast<uint32_t>(Draw(config_.devices.size()));
  ++counts_.readings;
  // Some readings come late.
  DeviceReading reading{.taken = now_ - absl::Milliseconds(Draw(100)),
                        .total = MiB(64),
                        .free = MiB(Chance(60) ? 64 : Draw(65)),
                        .rest = MiB(Chance(80) ? 0 : Draw(8))};
  if (Chance(80)) reading.utilisation = static_cast<uint32_t>(Draw(101));
  for (uint64_t i = Draw(4); i > 0; --i) {
    // Some processes are clients, whose pid is 2, or their children.
    reading.processes.push_back({.pid = static_cast<int32_t>(1 + Draw(6)),
                                 .uid = static_cast<uint32_t>(1000 + Draw(4)),
                                 .name = "process",
                                 .bytes = MiB(Draw(12)),
                                 .daemon = Chance(20)});
  }
  core_->DeviceRead(now_, device, reading, &effects_);
}

}  // namespace berth::core
