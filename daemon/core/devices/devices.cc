#include "daemon/core/devices/devices.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"
#include "daemon/core/managers.h"
#include "daemon/core/types/invariant.h"
#include "daemon/core/types/record_kind.h"

namespace berth::core {
namespace {

// Sizes in the protocol and in files are partly signed.
constexpr uint64_t kMaxBlockBytes = std::numeric_limits<int64_t>::max();

absl::Status NoDevice(const absl::AlphaNum& id) {
  return Refuse(Reason::kNotFound, "no {kind} {id}", {{"kind", "device"}, {"id", id}});
}

absl::Status OutOfRange(absl::string_view field, uint64_t value, uint64_t limit) {
  return Refuse(Reason::kOutOfRange, "{field} is {value}, the most is {limit}",
                {{"field", field}, {"value", value}, {"limit", limit}});
}

}  // namespace

absl::StatusOr<Device*> Devices::FindDevice(uint32_t ordinal, const std::string& uuid) {
  if (!uuid.empty()) {
    BERTH_ASSIGN_OR_RETURN(const uint32_t found, placement_.Find(uuid));
    return &devices_.at(found);
  }
  if (ordinal >= kMaxDeviceOrdinals) return OutOfRange("device", ordinal, kMaxDeviceOrdinals - 1);
  const auto found = devices_.find(ordinal);
  if (found == devices_.end()) return NoDevice(ordinal);
  return &found->second;
}

absl::StatusOr<Device*> Devices::FindServing(uint32_t ordinal, const std::string& uuid) {
  BERTH_ASSIGN_OR_RETURN(Device* const device, FindDevice(ordinal, uuid));
  if (!device->main.in_service()) return OutOfService(*device, WorkerKind::kMain);
  if (!device->drain_reason.empty()) return Draining(*device);
  return device;
}

absl::StatusOr<Bytes> Devices::Measure(const Device& device, Bytes bytes) const {
  if (bytes.count() == 0) {
    return Refuse(Reason::kInvalidField, "{field} is {value}, the least is {limit}",
                  {{"field", "bytes"}, {"value", 0}, {"limit", 1}});
  }
  const std::optional<Bytes> rounded = bytes.RoundUp(device.config.granularity);
  if (!rounded.has_value() || rounded->count() > kMaxBlockBytes) {
    return OutOfRange("bytes", bytes.count(), kMaxBlockBytes);
  }
  return *rounded;
}

void Devices::ReportDevice(StepContext& step, uint32_t device, WorkerKind worker_kind, const DeviceReport& report) {
  const auto found = devices_.find(device);
  if (found == devices_.end()) return;
  Device& changed = found->second;
  Worker& worker = changed.worker(worker_kind);
  worker.abandoned = report.abandoned;
  worker.restarts_left = report.restarts_left;
  worker.last_failure = report.last_failure;
  MarkDevicesChanged(step);
  if (worker_kind == WorkerKind::kMain && !std::exchange(changed.drain_known, true)) {
    changed.drain_reason = report.drain_reason;
    if (!changed.drain_reason.empty()) RefuseDrained(step, changed);
  }
  if (report.dropped && worker.state != DeviceState::kDropped) {
    worker.state = DeviceState::kDropped;
    worker.calls.Clear();
    UpdateIslands();
    core_.workers.RefuseWaiting(step, changed, worker_kind);
  }
  if (report.generation <= worker.generation) return;
  worker.generation = report.generation;
  if (worker_kind == WorkerKind::kContext) {
    // The worker's memory is lost with it, and the next command goes to a new worker.
    if (worker.state == DeviceState::kReady) worker.state = DeviceState::kRebuilding;
    core_.workers.MarkContextNeed(step, changed);
    return;
  }
  // Stale warm blocks are useless. Stale blocks with an owner stay until their owners free them.
  for (const BlockId warm : changed.warm.All()) core_.blocks.Abandon(step, *core_.blocks.Find(warm));
}

absl::StatusOr<DeviceView> Devices::EnableDevice(StepContext& step, uint32_t device) {
  BERTH_ASSIGN_OR_RETURN(Device* const found, FindForOperator(device));
  for (const WorkerKind worker_kind : kWorkerKinds) {
    const Worker& worker = found->worker(worker_kind);
    if (worker.state == DeviceState::kStopped && worker.abandoned) return OutOfService(*found, worker_kind);
  }
  Enable(step, *found);
  return ViewDevice(*found);
}

absl::StatusOr<DeviceView> Devices::Restart(StepContext& step, uint32_t device, WorkerKind worker_kind) {
  BERTH_ASSIGN_OR_RETURN(Device* const found, FindForOperator(device));
  if (worker_kind == WorkerKind::kContext) BERTH_RETURN_IF_ERROR(Workers::CheckHasContext(*found));
  const DeviceState state = found->worker(worker_kind).state;
  if (state == DeviceState::kStopped) return OutOfService(*found, worker_kind);
  if (state == DeviceState::kReady) {
    SendCommand(step, *found, worker_kind, WorkerCommand::kRestart, "restarted by an operator");
  }
  return ViewDevice(*found);
}

absl::StatusOr<DeviceView> Devices::ResetDevice(StepContext& step, uint32_t device) {
  BERTH_ASSIGN_OR_RETURN(Device* const found, FindForOperator(device));
  SendCommand(step, *found, WorkerKind::kMain, WorkerCommand::kReset, "reset by an operator");
  return ViewDevice(*found);
}

absl::StatusOr<DeviceView> Devices::DropDevice(StepContext& step, uint32_t device) {
  BERTH_ASSIGN_OR_RETURN(Device* const found, FindForOperator(device));
  const std::string why = "dropped by an operator";
  for (const WorkerKind worker_kind : kWorkerKinds) found->worker(worker_kind).last_failure = why;
  SendCommand(step, *found, WorkerKind::kMain, WorkerCommand::kDrop, why);
  UpdateIslands();
  for (const WorkerKind worker_kind : kWorkerKinds) core_.workers.RefuseWaiting(step, *found, worker_kind);
  return ViewDevice(*found);
}

absl::StatusOr<Device*> Devices::FindForOperator(uint32_t device) {
  const auto found = devices_.find(device);
  if (found == devices_.end()) {
    return Refuse(Reason::kNotFound, "no {kind} {id}", {{"kind", "device"}, {"id", device}});
  }
  if (found->second.main.state == DeviceState::kDropped) return OutOfService(found->second, WorkerKind::kMain);
  return &found->second;
}

void Devices::SendCommand(StepContext& step, Device& device, WorkerKind worker_kind, WorkerCommand command,
                          const std::string& why) {
  for (const WorkerKind each : kWorkerKinds) {
    Worker& worker = device.worker(each);
    const bool drains = command == WorkerCommand::kDrain || command == WorkerCommand::kUndrain;
    const bool both =
        command == WorkerCommand::kReset || command == WorkerCommand::kDrop || command == WorkerCommand::kLose;
    if (drains || (each != worker_kind && !both)) continue;
    worker.calls.Clear();
    if (command == WorkerCommand::kDrop) {
      worker.state = DeviceState::kDropped;
    } else if (command == WorkerCommand::kLose) {
      worker.state = DeviceState::kStopped;
    } else if (command == WorkerCommand::kEnable && each == WorkerKind::kMain) {
      worker.state = DeviceState::kProbation;
      device.tested = false;
    } else if (command == WorkerCommand::kEnable || command == WorkerCommand::kStart ||
               worker.state == DeviceState::kReady) {
      // A worker on probation stays there until the supervisor reports the result.
      worker.state = DeviceState::kRebuilding;
    }
  }
  core_.workers.MarkContextNeed(step, device);
  step.Emit(
      SendWorkerCommand{.device = device.config.ordinal, .command = command, .worker_kind = worker_kind, .why = why});
  MarkDevicesChanged(step);
}

void Devices::MarkDevicesChanged(StepContext& step) {
  step.Emit(DevicesChanged());
  step.dirty.devices = true;
  for (const auto& [ordinal, device] : devices_) step.journal->Touch(RecordKind::kDevice, ordinal);
}

void Devices::EndHungWorkers(StepContext& step) {
  for (auto& [ordinal, device] : devices_) {
    for (const WorkerKind worker_kind : kWorkerKinds) {
      Worker& worker = device.worker(worker_kind);
      if (worker.calls.deadline() > step.now) continue;
      worker.last_failure =
          absl::StrCat("a driver call did not end within ",
                       absl::FormatDuration(absl::Trunc(worker.calls.allowed(), absl::Milliseconds(1))));
      SendCommand(step, device, worker_kind, WorkerCommand::kKill, worker.last_failure);
    }
  }
}

absl::Status Devices::OutOfService(const Device& device, WorkerKind worker_kind) {
  const std::string& why = device.worker(worker_kind).last_failure;
  return Refuse(Reason::kDeviceStopped, "{what} {device} is out of service: {why}",
                {{"what", worker_kind == WorkerKind::kMain ? "device" : "the context worker of device"},
                 {"device", device.config.ordinal},
                 {"why", why.empty() ? "stopped" : why}});
}

bool Devices::IsPlaced(const Device& device) const {
  const Placement::State& known = placement_.StateOf(device.config.ordinal);
  return known.ledger == device.account.charged() && known.in_service == device.takes_leases() &&
         known.dropped == (device.main.state == DeviceState::kDropped) && known.stopped == device.WhyStopped() &&
         known.generation == device.main.generation && known.draining == device.drain_reason;
}

void Devices::UpdatePlacement() {
  // Every change of a device or its budget touches a record of the device, or of the block that caused it.
  if (std::exchange(placed_touches_, core_.journal.memory_touches()) == core_.journal.memory_touches()) return;
  for (const auto& [ordinal, device] : devices_) {
    if (IsPlaced(device)) continue;
    placement_.Update(ordinal, {.generation = device.main.generation,
                                .in_service = device.takes_leases(),
                                .dropped = device.main.state == DeviceState::kDropped,
                                .stopped = device.WhyStopped(),
                                .draining = device.drain_reason,
                                .ledger = device.account.charged()});
  }
}

void Devices::Add(const DeviceConfig& config) {
  BERTH_INVARIANT(config.granularity.count() > 0 && config.ordinal < kMaxDeviceOrdinals);
  core_.budgets.AddDevice(
      devices_.try_emplace(config.ordinal, config, core_.config.warm_sizes, core_.config.calls).first->second);
  core_.journal.Touch(RecordKind::kDevice, config.ordinal);
  placement_.Add(config.ordinal, {.uuid = config.uuid,
                                  .kind = config.kind,
                                  .total = config.total,
                                  .reserve = config.permit_reserve,
                                  .context = config.context,
                                  .others = config.others,
                                  .facts = config.facts});
}

absl::Time Devices::next_deadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [ordinal, device] : devices_) {
    next = std::min({next, device.refill_at, device.main.calls.deadline(), device.context.calls.deadline(),
                     device.context.idle_at, device.survey_due});
  }
  return next;
}

void Devices::FinishRestoring() {
  placed_touches_.reset();
  UpdatePlacement();
}

}  // namespace berth::core
