#include "daemon/roles.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/cuda/driver.h"
#include "common/error.h"
#include "common/status_macros.h"
#include "common/version.h"
#include "daemon/clears_checks.h"
#include "daemon/confinement.h"
#include "daemon/device/context_memory.h"
#include "daemon/device/device_identity.h"
#include "daemon/device/device_meter.h"
#include "daemon/device/device_runtime.h"
#include "daemon/device/device_runtimes.h"
#include "daemon/device/fault.h"
#include "daemon/device/inventory.h"
#include "daemon/device/monitor.h"
#include "daemon/device/node_script.h"
#include "daemon/device/self_test.h"
#include "daemon/device/worker.h"
#include "daemon/device/worker_exit.h"
#include "daemon/vault/child_process.h"
#include "daemon/vault/run_folder.h"
#include "daemon/vault/vault.h"

namespace berth {
namespace {

void Report(absl::string_view process, const absl::Status& status) {
  if (status.ok()) return;
  dprintf(STDERR_FILENO, "%s: %s\n", std::string(process).c_str(), std::string(status.message()).c_str());
}

int ExitCode(absl::string_view process, const absl::Status& status) {
  Report(process, status);
  return status.ok() ? 0 : 1;
}

// What the worker did, for who asks why it ended.
void ReportRuntime(const std::string& name, const DeviceRuntime& runtime) {
  dprintf(STDERR_FILENO, "%s: blocks: %s; its last calls:\n", name.c_str(),
          ToString(runtime.statistics()).c_str());
  for (const MemoryRecord& record : runtime.log()) {
    dprintf(STDERR_FILENO, "%s:   %s\n", name.c_str(), ToString(record).c_str());
  }
}

// What a worker of that role makes blocks of.
BackendKind KindOf(const Options& options) {
  const bool host = options.backend == BackendChoice::kHost;
  if (options.role == Role::kContextWorker) return host ? BackendKind::kHostNamed : BackendKind::kCudaDirect;
  return host ? BackendKind::kHost : BackendKind::kCudaVmm;
}

absl::StatusOr<WorkerEnd> ServeDevice(const std::string& name, const Options& options,
                                      const RuntimeOpener& open) {
  BERTH_RETURN_IF_ERROR(NameProcess(name));
  const char* const poison = getenv("BERTH_POISON");
  RuntimeOptions runtime_options;
  BERTH_ASSIGN_OR_RETURN(runtime_options.poison, ParsePoison(poison == nullptr ? "" : poison));
  const BackendKind kind = KindOf(options);
  DeviceRuntimes runtimes([&](uint32_t ordinal) {
    return open({.kind = kind, .ordinal = ordinal, .total = options.host_bytes, .folder = options.folder},
                runtime_options);
  });
  if (options.backend != BackendChoice::kHost && !options.device_uuid.empty()) {
    BERTH_ASSIGN_OR_RETURN(cuda::Driver* const driver, cuda::Driver::Get());
    BERTH_RETURN_IF_ERROR(CheckDevice(*driver, static_cast<int>(options.device), options.device_uuid));
  }
  std::optional<ContextMeter> meter;
  if (kind == BackendKind::kCudaDirect) meter.emplace(options.device);
  BERTH_ASSIGN_OR_RETURN(DeviceRuntime* const runtime, runtimes.Get(options.device));
  std::optional<Bytes> context;
  if (options.role == Role::kContextWorker) context = meter.has_value() ? meter->Measure() : Bytes(0);
  absl::StatusOr<WorkerEnd> end = ServeWorker(kChildFd, *runtime, context);
  if (!end.ok() || end->exit != WorkerExit::kDone) ReportRuntime(name, *runtime);
  return end;
}

absl::Status ListDevices(const std::string& name, const Options& options) {
  BERTH_RETURN_IF_ERROR(BecomeChild(name, options.parent));
  BERTH_ASSIGN_OR_RETURN(std::vector<DeviceRecord> records,
                         TakeInventory({.backend = options.backend,
                                        .host_devices = options.host_devices,
                                        .host_bytes = options.host_bytes,
                                        .host_devices_file = options.host_devices_file}));
  if (options.clears_check) RunClearsChecks(&records);
  return WriteInventory(kChildFd, records);
}

// Serves its socket until that hangs up.
absl::Status Monitor(const std::string& name, const Options& options) {
  BERTH_RETURN_IF_ERROR(NameProcess(name));
  return ServeMonitor(kChildFd, [&](const std::vector<DeviceRecord>& records, size_t index) {
    const DeviceRecord& record = records[index];
    if (options.host_devices_file.empty()) return NewNvmlMeter(records, index, options.parent);
    return NewScriptedMeter(options.host_devices_file, record.ordinal, Bytes(record.total_bytes),
                            options.parent);
  });
}

absl::Status TestDevice(const std::string& name, const Options& options) {
  BERTH_RETURN_IF_ERROR(BecomeChild(name, options.parent));
  if (options.backend != BackendChoice::kHost) {
    if (options.host_bytes == Bytes(0)) {
      return absl::FailedPreconditionError("it could not be read when the daemon started, which has to start anew");
    }
    BERTH_ASSIGN_OR_RETURN(cuda::Driver* const driver, cuda::Driver::Get());
    BERTH_RETURN_IF_ERROR(CheckDevice(*driver, static_cast<int>(options.device), options.device_uuid));
    return TestCudaDevice(*driver, static_cast<int>(options.device), kSelfTestBytes);
  }
  if (!options.host_devices_file.empty()) {
    BERTH_ASSIGN_OR_RETURN(const NodeScript script, ReadNodeScript(options.host_devices_file));
    if (options.device >= script.devices.size()) return absl::NotFoundError("the script has no such device");
    const std::string& fails = script.devices[options.device].fails_self_test;
    if (!fails.empty()) return absl::InternalError(fails);
  }
  BERTH_ASSIGN_OR_RETURN(
      const std::unique_ptr<DeviceRuntime> runtime,
      DeviceRuntime::Open(
          {.kind = BackendKind::kHost, .ordinal = options.device, .total = options.host_bytes}, {}));
  return TestBackend(*runtime);
}

}  // namespace

int RunVaultRole(const Options& options) {
  // Who follows another has it from that.
  if (options.broker_fd < 0) {
    if (const absl::Status confined = ConfineDaemon(); !confined.ok()) return ExitCode("berthd", confined);
  }
  return ExitCode("berthd", Vault::Run({.folder = options.folder,
                                        .observers = FindGroup(options.observer_group),
                                        .child_flags = FlagsForChildren(options),
                                        .host_devices_file = options.host_devices_file,
                                        .ready_fd = options.ready_fd,
                                        .broker_fd = options.broker_fd,
                                        .renew = options.renew}));
}

int RunWorkerRole(const Options& options) { return RunWorkerRole(options, DeviceRuntime::Open); }

int RunWorkerRole(const Options& options, const RuntimeOpener& open) {
  const std::string name =
      absl::StrCat(options.role == Role::kWorker ? "berth-worker" : "berth-context", options.device);
  const absl::StatusOr<WorkerEnd> end = ServeDevice(name, options, open);
  const absl::Status why = end.ok() ? end->fault : end.status();
  Report(name, why);
  if (end.ok()) return static_cast<int>(end->exit);
  if (IsRefusal(why, Reason::kNotFound)) return static_cast<int>(WorkerExit::kOtherDevice);
  // The driver may be lost before there is anything to serve.
  const FaultDirective directive = DirectiveOf(why);
  return static_cast<int>(directive == FaultDirective::kGoOn ? WorkerExit::kFailed : ExitFor(directive));
}

int RunInventoryRole(const Options& options) {
  const std::string name = "berth-inventory";
  // Threads of its own may be in a driver that does not return.
  ::_exit(ExitCode(name, ListDevices(name, options)));
}

int RunMonitorRole(const Options& options) {
  // Threads of its own may be in a driver that does not return.
  ::_exit(ExitCode("berth-monitor", Monitor("berth-monitor", options)));
}

int RunSelfTestRole(const Options& options) {
  const absl::Status status = TestDevice(absl::StrCat("berth-test", options.device), options);
  if (status.ok()) return 0;
  // The vault reads why.
  const std::string why(status.message());
  return ::write(kChildFd, why.data(), why.size()) < 0 ? 2 : 1;
}

std::string VersionText() { return absl::StrCat("berthd ", kVersion, ", ", cuda::BuiltWith()); }

}  // namespace berth
