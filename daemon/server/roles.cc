#include "daemon/server/roles.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <vector>

#include <berth/error.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/cuda/driver.h"
#include "common/os/os_error.h"
#include "common/status_macros.h"
#include "common/version.h"
#include "daemon/base/private_folder.h"
#include "daemon/base/stderr_log.h"
#include "daemon/device/memory/device_runtime.h"
#include "daemon/device/memory/device_runtimes.h"
#include "daemon/device/monitor/context_memory.h"
#include "daemon/device/monitor/device_meter.h"
#include "daemon/device/monitor/inventory.h"
#include "daemon/device/monitor/monitor.h"
#include "daemon/device/monitor/node_script.h"
#include "daemon/device/worker/device_identity.h"
#include "daemon/device/worker/fault.h"
#include "daemon/device/worker/self_test.h"
#include "daemon/device/worker/worker.h"
#include "daemon/device/worker/worker_exit.h"
#include "daemon/server/confinement.h"
#include "daemon/server/memory_scrub_checks.h"
#include "daemon/supervisor/folder/run_folder.h"
#include "daemon/supervisor/processes/child_process.h"
#include "daemon/supervisor/supervisor.h"

namespace berth {
namespace {

void Report(absl::string_view process, const absl::Status& status) {
  if (status.ok()) return;
  LogLine(absl::StrCat(process, ": ", status.message()));
}

int ExitCode(absl::string_view process, const absl::Status& status) {
  Report(process, status);
  return status.ok() ? 0 : 1;
}

// Reports the worker's last calls, to explain why it ended.
void ReportRuntime(const std::string& name, const DeviceRuntime& runtime) {
  std::string lines = absl::StrCat(name, ": blocks: ", ToString(runtime.statistics()), "; last calls:\n");
  for (const MemoryRecord& record : runtime.log()) absl::StrAppend(&lines, name, ":   ", ToString(record), "\n");
  StderrLog().Write(lines);
}

// Returns the backend of the blocks that a worker of that role makes.
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
  uint32_t ordinal = options.device;
  if (options.backend != BackendChoice::kHost && !options.device_uuid.empty()) {
    BERTH_ASSIGN_OR_RETURN(cuda::Driver* const driver, cuda::Driver::Get());
    BERTH_ASSIGN_OR_RETURN(const int found, FindCudaOrdinal(*driver, options.device, options.device_uuid));
    ordinal = static_cast<uint32_t>(found);
  }
  DeviceRuntimes runtimes([&](uint32_t) {
    return open({.kind = kind, .ordinal = ordinal, .total = options.host_bytes, .folder = options.folder},
                runtime_options);
  });
  std::optional<ContextMeter> meter;
  if (kind == BackendKind::kCudaDirect) meter.emplace(options.device_uuid);
  BERTH_ASSIGN_OR_RETURN(DeviceRuntime* const runtime, runtimes.Get(options.device));
  std::optional<Bytes> context;
  if (options.role == Role::kContextWorker) context = meter.has_value() ? meter->Measure() : Bytes(0);
  absl::StatusOr<WorkerEnd> end = ServeWorker(kChildFd, *runtime, context);
  if (!end.ok() || end->exit != WorkerExit::kDone) ReportRuntime(name, *runtime);
  return end;
}

absl::Status ListDevices(const std::string& name, const Options& options) {
  BERTH_RETURN_IF_ERROR(BecomeChild(name, options.parent));
  const InventoryOptions inventory = {.backend = options.backend,
                                      .host_devices = options.host_devices,
                                      .host_bytes = options.host_bytes,
                                      .host_devices_file = options.host_devices_file};
  BERTH_RETURN_IF_ERROR(WriteInventory(kChildFd, ProvisionalInventory(inventory)));
  BERTH_ASSIGN_OR_RETURN(std::vector<DeviceRecord> records, TakeInventory(inventory));
  if (options.memory_scrub_check) RunMemoryScrubChecks(&records);
  return WriteInventory(kChildFd, records);
}

// Serves the monitor's socket until it hangs up.
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
      return absl::FailedPreconditionError("the device could not be read at the daemon's start: restart the daemon");
    }
    BERTH_ASSIGN_OR_RETURN(cuda::Driver* const driver, cuda::Driver::Get());
    BERTH_ASSIGN_OR_RETURN(const int ordinal, FindCudaOrdinal(*driver, options.device, options.device_uuid));
    return TestCudaDevice(*driver, ordinal, kSelfTestBytes);
  }
  if (!options.host_devices_file.empty()) {
    BERTH_ASSIGN_OR_RETURN(const NodeScript script, ReadNodeScript(options.host_devices_file));
    if (options.device >= script.devices.size()) {
      return absl::NotFoundError("the device file no longer describes this device");
    }
    const std::string& fails = script.devices[options.device].fails_self_test;
    if (!fails.empty()) return absl::InternalError(fails);
  }
  BERTH_ASSIGN_OR_RETURN(
      const std::unique_ptr<DeviceRuntime> runtime,
      DeviceRuntime::Open(
          {.kind = BackendKind::kHost, .ordinal = options.device, .total = options.host_bytes}, {}));
  return TestBackend(*runtime);
}

// The sockets of a user's own daemon keep the user's group.
FolderGroups GroupsOf(const Options& options) {
  const FolderGroups groups = {.clients = ::geteuid() == 0 ? FindGroup(options.client_group) : std::nullopt,
                               .observers = FindGroup(options.observer_group)};
  const Options defaults;
  const bool has_clients = groups.clients.has_value() || ::geteuid() != 0;
  if (!has_clients && options.client_group != defaults.client_group) {
    LogLine(absl::StrCat("berthd: --client-group: no group \"", options.client_group, "\"; only root can lease"));
  }
  if (!groups.observers.has_value() && options.observer_group != defaults.observer_group) {
    LogLine(absl::StrCat("berthd: --observer-group: no group \"", options.observer_group,
                         "\"; only the daemon's user can read everything"));
  }
  return groups;
}

}  // namespace

int RunSupervisorRole(const Options& options) {
  // Each process of the daemon opens what another one has created. The bits for other users stay the operator's.
  ::umask(::umask(077) & 077);
  // The driver reads the variable in each process of the daemon. Ordinals of GPUs count in PCI order, also those in the
  // daemon's CUDA_VISIBLE_DEVICES.
  if (::setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", /*overwrite=*/1) < 0) {
    return ExitCode("berthd", OsError("setenv", errno));
  }
  // A supervisor that takes over inherits the confinement and the checked folder.
  if (options.broker_fd < 0) {
    // Supervisor::Run() refuses a --folder that is none.
    const bool in_folder = absl::StartsWith(options.state, options.folder + "/");
    std::error_code error;
    if (!in_folder || std::filesystem::is_directory(options.folder, error)) {
      absl::Status state = in_folder ? absl::OkStatus() : CheckAbove(options.state);
      if (state.ok()) state = CheckPrivate(options.state);
      if (!state.ok()) {
        return ExitCode("berthd: --state", state);
      }
    }
    if (const absl::Status confined = ConfineDaemon(); !confined.ok()) return ExitCode("berthd", confined);
  }
  return ExitCode("berthd", Supervisor::Run({.folder = options.folder,
                                             .groups = GroupsOf(options),
                                             .child_flags = FlagsForChildren(options),
                                             .host_devices_file = options.host_devices_file,
                                             .ready_fd = options.ready_fd,
                                             .broker_fd = options.broker_fd,
                                             .renew = options.renew,
                                             .program = options.program}));
}

int RunWorkerRole(const Options& options) { return RunWorkerRole(options, DeviceRuntime::Open); }

int RunWorkerRole(const Options& options, const RuntimeOpener& open) {
  const std::string name =
      absl::StrCat(options.role == Role::kWorker ? "berth-worker" : "berth-context", options.device);
  const absl::StatusOr<WorkerEnd> end = ServeDevice(name, options, open);
  const absl::Status why = end.ok() ? end->fault : end.status();
  Report(name, why);
  if (end.ok()) return static_cast<int>(end->exit);
  if (IsRefusal(why, Reason::kNotFound)) return static_cast<int>(WorkerExit::kDeviceMissing);
  // The driver may already be lost before the worker serves.
  const FaultDirective directive = DirectiveOf(why);
  return static_cast<int>(directive == FaultDirective::kGoOn ? WorkerExit::kFailed : ExitFor(directive));
}

int RunInventoryRole(const Options& options) {
  const std::string name = "berth-inventory";
  // Exit without joining threads, which may be stuck in the driver.
  ::_exit(ExitCode(name, ListDevices(name, options)));
}

int RunMonitorRole(const Options& options) {
  // Exit without joining threads, which may be stuck in the driver.
  ::_exit(ExitCode("berth-monitor", Monitor("berth-monitor", options)));
}

int RunSelfTestRole(const Options& options) {
  const absl::Status status = TestDevice(absl::StrCat("berth-test", options.device), options);
  if (status.ok()) return 0;
  // The supervisor reads the reason.
  const std::string why(status.message());
  return ::write(kChildFd, why.data(), why.size()) < 0 ? 2 : 1;
}

std::string VersionText() { return absl::StrCat("berthd ", kVersion, ", ", cuda::BuiltWith()); }

}  // namespace berth
