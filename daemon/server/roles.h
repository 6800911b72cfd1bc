// The roles of berthd's processes, one function per role. The broker's is in daemon/server/run_broker.h.

#ifndef DAEMON_SERVER_ROLES_H_
#define DAEMON_SERVER_ROLES_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/config/options.h"
#include "daemon/device/memory/device_runtime.h"

namespace berth {

// Each function runs its role to the end. Returns the process's exit code, after reporting a failure on stderr.
int RunSupervisorRole(const Options& options);
int RunWorkerRole(const Options& options);
// Runs the worker with runtimes from `open`; for tests with drivers that misbehave.
using RuntimeOpener = std::function<absl::StatusOr<std::unique_ptr<DeviceRuntime>>(
    const DeviceSpec& spec, const RuntimeOptions& options)>;
int RunWorkerRole(const Options& options, const RuntimeOpener& open);
int RunInventoryRole(const Options& options);
int RunMonitorRole(const Options& options);
int RunSelfTestRole(const Options& options);

// "berthd <version>, <what it was built with>".
std::string VersionText();

}  // namespace berth

#endif  // DAEMON_SERVER_ROLES_H_
