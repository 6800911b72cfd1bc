// What berthd's processes do, one function a role. The broker's is daemon/run_broker.h.

#ifndef DAEMON_ROLES_H_
#define DAEMON_ROLES_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/device/device_runtime.h"
#include "daemon/options.h"

namespace berth {

// Each runs the role to its end.
// Returns: the process's exit code; a failure has been said on stderr.
int RunVaultRole(const Options& options);
int RunWorkerRole(const Options& options);
// The same with runtimes that `open` makes: for tests of drivers that do what none is to do.
using RuntimeOpener = std::function<absl::StatusOr<std::unique_ptr<DeviceRuntime>>(
    const DeviceSpec& spec, const RuntimeOptions& options)>;
int RunWorkerRole(const Options& options, const RuntimeOpener& open);
int RunInventoryRole(const Options& options);
int RunMonitorRole(const Options& options);
int RunSelfTestRole(const Options& options);

// "berthd <version>, <what it was built with>".
std::string VersionText();

}  // namespace berth

#endif  // DAEMON_ROLES_H_
