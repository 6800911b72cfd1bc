// Has the devices of an inventory checked for whether their drivers clear memory, each in a process of its own, which
// has a context there and says what that takes.

#ifndef DAEMON_CLEARS_CHECKS_H_
#define DAEMON_CLEARS_CHECKS_H_

#include <vector>

#include "daemon/device/device_record.h"
#include "daemon/options.h"

namespace berth {

// Sets `clears` of each record, and `context_mib` of those whose model was looked at. All at once, and for a few
// seconds at most: a check that takes longer is killed. Left out are host devices, and those with so little free that
// somebody might miss what the check takes.
void RunClearsChecks(std::vector<DeviceRecord>* records);

// A context takes as much of a device that could not be looked at as of one of the same model.
void TakeContextsOfTheirModel(std::vector<DeviceRecord>* records);

// The process of one check. Returns: its exit code; what was found is in the file that it was given.
int RunClearsCheckRole(const Options& options);

}  // namespace berth

#endif  // DAEMON_CLEARS_CHECKS_H_
