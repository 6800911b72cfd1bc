// Devices: the devices in and out of service, by the supervisor's and the monitor's reports and by operators' commands,
// and the placement of permits on them.

#ifndef DAEMON_CORE_DEVICES_DEVICES_H_
#define DAEMON_CORE_DEVICES_DEVICES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <berth/bytes.h>
#include <berth/ids.h>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/base/archive.h"
#include "daemon/base/ledger_record.h"
#include "daemon/base/worker_kind.h"
#include "daemon/core/core.h"
#include "daemon/core/devices/device_state.h"
#include "daemon/core/devices/placement.h"
#include "daemon/core/memory/block_table.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/device_types.h"
#include "daemon/core/types/effects.h"
#include "daemon/core/types/permit_types.h"
#include "daemon/core/types/step_context.h"

namespace berth::core {

struct Managers;

// Thread-compatible; part of the core.
class Devices {
 public:
  // `core` outlives the manager.
  explicit Devices(Managers& core) : core_(core) {}

  // ---- Events and queries (core.h) ---------------------------------------------------------------------------

  absl::StatusOr<DeviceView> Restart(StepContext& step, uint32_t device, WorkerKind worker_kind);
  std::vector<DeviceView> ListDevices() const;
  void DeviceRead(StepContext& step, uint32_t device, const DeviceReading& reading);
  std::vector<StrayView> ListStrays(const Caller& caller) const;
  void MonitorUp(StepContext& step);
  void MonitorDown(StepContext& step);
  void DeviceSurveyed(StepContext& step, uint32_t device, const DeviceSurvey& survey);
  absl::StatusOr<DeviceView> DrainDevice(StepContext& step, uint32_t device, const std::string& reason);
  absl::StatusOr<DeviceView> UndrainDevice(StepContext& step, uint32_t device);
  std::vector<IslandView> ListIslands() const;
  void ReportDevice(StepContext& step, uint32_t device, WorkerKind worker_kind, const DeviceReport& report);
  absl::StatusOr<DeviceView> EnableDevice(StepContext& step, uint32_t device);
  absl::StatusOr<DeviceView> ResetDevice(StepContext& step, uint32_t device);
  absl::StatusOr<DeviceView> DropDevice(StepContext& step, uint32_t device);
  absl::Status CheckDeviceRecords(const RecordViews& records, const ArchiveOrigin& origin) const;

  // ---- For the other managers -------------------------------------------------------------------------------

  void SetReadings(PermitView* permit) const;
  // Updates the placement with the devices' states and usage.
  void UpdatePlacement();
  // Finds by UUID where that is not empty, else by ordinal. Errors: NOT_FOUND, OUT_OF_RANGE.
  absl::StatusOr<Device*> FindDevice(uint32_t ordinal, const std::string& uuid);
  // FindDevice() for a device that serves. Errors: also DEVICE_STOPPED.
  absl::StatusOr<Device*> FindServing(uint32_t ordinal, const std::string& uuid);
  // Returns the bytes that a block of `bytes` takes on the device.
  absl::StatusOr<Bytes> Measure(const Device& device, Bytes bytes) const;
  // Requests the end of workers whose driver call exceeds its deadline.
  void EndHungWorkers(StepContext& step);
  // Emits the command. The next worker receives the worker's unanswered commands; for a command that concerns the whole
  // device, those of both its workers.
  void SendCommand(StepContext& step, Device& device, WorkerKind worker_kind, WorkerCommand command,
                   const std::string& why);
  // Emits DevicesChanged, and marks the plans for a comparison with the devices at the end of the step.
  void MarkDevicesChanged(StepContext& step);
  static absl::Status OutOfService(const Device& device, WorkerKind worker_kind);
  static absl::Status Draining(const Device& device);
  // Recomputes NVLink islands; a dropped device forms its own.
  void UpdateIslands();
  // Requests the end of a monitor that no longer reports on a device.
  void EndHungMonitor(StepContext& step);
  bool WriteDevice(uint64_t ordinal, ArchiveWriter& archive) const;
  void ReadDevice(uint64_t ordinal, ArchiveReader& archive);
  absl::Status CheckDevices() const;

  // By ordinal.
  std::map<uint32_t, Device>& all() { return devices_; }
  const std::map<uint32_t, Device>& all() const { return devices_; }
  bool Has(uint32_t ordinal) const { return devices_.contains(ordinal); }
  // Whether the restored state had a device of this ordinal that the driver had not identified, and there is none now.
  bool HasDeparted(uint32_t ordinal) const { return departed_.contains(ordinal); }
  // Requires: the device exists.
  Device& At(uint32_t ordinal) { return devices_.at(ordinal); }
  const Device& At(uint32_t ordinal) const { return devices_.at(ordinal); }
  Device& DeviceOf(const Block& block) { return devices_.at(block.device); }
  Placement& placement() { return placement_; }
  void Add(const DeviceConfig& config);
  // Returns the earliest time at which a device needs a Tick().
  absl::Time next_deadline() const;
  // Marks every device for a comparison with the placement, after a restore.
  void FinishRestoring();

 private:
  // A process belongs to the session of its own channel or of an ancestor's.
  using SessionsByPid = absl::flat_hash_map<int32_t, SessionId>;

  SessionsByPid PidsOfSessions() const;
  static SessionId SessionOf(const SessionsByPid& pids, const ProcessReading& process);
  Placement::Usage UsageOf(const Device& device, const SessionsByPid& pids);
  // Whether the placement knows the device's present state.
  bool IsPlaced(const Device& device) const;
  // Finds a device for the operator's verbs. Errors: NOT_FOUND, DEVICE_STOPPED (dropped).
  absl::StatusOr<Device*> FindForOperator(uint32_t device);
  // Returns stopped workers to service, after a self-test of the device.
  void Enable(StepContext& step, Device& device);
  // Refuses the requests that wait for new bytes on the device.
  void RefuseDrained(StepContext& step, Device& device);
  DeviceView ViewDevice(const Device& device) const;

  Managers& core_;
  std::map<uint32_t, Device> devices_;
  std::set<uint32_t> departed_;
  Placement placement_;
  // Journal::memory_touches() at the placement's last update; empty after a restart.
  std::optional<uint64_t> placed_touches_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_DEVICES_DEVICES_H_
