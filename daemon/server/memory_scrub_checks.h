// The memory-scrub check: tests whether the drivers of an inventory's devices clear memory between owners. Each device
// is checked by a process of its own, which also measures the size of its context.

#ifndef DAEMON_SERVER_MEMORY_SCRUB_CHECKS_H_
#define DAEMON_SERVER_MEMORY_SCRUB_CHECKS_H_

#include <vector>

#include "daemon/config/options.h"
#include "daemon/device/monitor/device_record.h"

namespace berth {

// Sets `scrub` of each record, and `context_mib` of each record whose model was measured. All checks run in parallel,
// for a few seconds at most; a check past its limit is killed. Skips host devices, and devices with so little free
// memory that the check could take what others need.
void RunMemoryScrubChecks(std::vector<DeviceRecord>* records);

// Gives a device without a measurement the context size of a device of the same model.
void TakeContextsOfTheirModel(std::vector<DeviceRecord>* records);

// Runs the process of one check. Returns its exit code; writes the finding to the file it was given.
int RunMemoryScrubCheckRole(const Options& options);

}  // namespace berth

#endif  // DAEMON_SERVER_MEMORY_SCRUB_CHECKS_H_
