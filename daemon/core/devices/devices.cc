#include "daemon/core/devices/devices.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/device_name.h"
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

// Persisted state of a device that the supervisor does not report.
struct DeviceLedgerRecord {
  // A context worker exists or was requested.
  bool context = false;
  uint64_t lost_before = 0;
  Bytes daemon;
  std::optional<Bytes> context_bytes;
  bool drain_known = false;
  std::string drain_reason;
  bool lost = false;
  bool tested = false;
  // Empty in records of schema 2.
  std::string uuid;
};
template <typename Archive>
void Fields(Archive& archive, DeviceLedgerRecord& record) {
  archive(record.context, record.lost_before, record.daemon, record.context_bytes, record.drain_known,
          record.drain_reason, record.lost, record.tested);
  archive.Since(3, record.uuid);
}

// Whether the driver had not identified the device. No lease is on such a device.
bool IsUnidentified(const DeviceLedgerRecord& record) { return absl::StartsWith(record.uuid, kUnidentifiedDevice); }

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
  worker.replaced = report.replaced;
  MarkDevicesChanged(step);
  if (worker_kind == WorkerKind::kMain && !std::exchange(changed.drain_known, true)) {
    changed.drain_reason = report.drain_reason;
    if (!changed.drain_reason.empty()) RefuseDrained(step, changed);
  }
  if (report.dropped && worker.state != DeviceState::kDropped) {
    core_.blocks.MemoryLost(step, changed, worker_kind, Blocks::kDropped);
    worker.state = DeviceState::kDropped;
    worker.calls.Clear();
    UpdateIslands();
    core_.workers.RefuseWaiting(step, changed, worker_kind);
  }
  if (report.generation <= worker.generation) return;
  core_.blocks.MemoryLost(step, changed, worker_kind, report.generation);
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
  const std::string why = "dropped by an operator; the daemon's next start returns it";
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
      core_.blocks.MemoryLost(step, device, each, Blocks::kDropped);
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
  absl::Time next = core_.workers.next_deadline();
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

// ---- Views, ledger records and the check of devices ----------------------------------------------------------

std::vector<DeviceView> Devices::ListDevices() const {
  std::vector<DeviceView> views;
  std::map<uint32_t, uint64_t> lost;
  core_.blocks.table().ForEach([&](const Block& block) {
    if (block.phase == BlockPhase::kLive && core_.blocks.WhyStale(block) != nullptr) ++lost[block.device];
  });
  for (const auto& [ordinal, device] : devices_) {
    views.push_back(ViewDevice(device));
    views.back().lost_blocks = lost[ordinal];
  }
  return views;
}

DeviceView Devices::ViewDevice(const Device& device) const {
  DeviceView view{.ordinal = device.config.ordinal,
                  .uuid = device.config.uuid,
                  .name = device.config.name,
                  .kind = device.config.kind,
                  .state = device.main.state,
                  .generation = device.main.generation,
                  .total = device.config.total,
                  .budget = device.account.limit().value(),
                  .granularity = device.config.granularity,
                  .bytes = device.account.counts(),
                  .failed_releases = device.account.failed_releases(),
                  .restarts_left = device.main.restarts_left,
                  .last_failure = device.main.last_failure,
                  .scrub = device.config.scrub,
                  .drain_reason = device.drain_reason,
                  .context_cost = device.context_cost(),
                  .score = placement_.ScoreOn(device.config.ordinal)};
  const bool serves = view.state == DeviceState::kReady || view.state == DeviceState::kRebuilding;
  if (serves && !device.drain_reason.empty()) view.state = DeviceState::kDraining;
  if (device.config.cuda_ipc) {
    view.context = DeviceView::ContextWorker{.state = device.context.state,
                                             .generation = device.context.generation,
                                             .restarts_left = device.context.restarts_left,
                                             .last_failure = device.context.last_failure};
  }
  if (device.reading.has_value()) {
    view.reading = DeviceView::Reading{.taken = device.reading->taken,
                                       .free = device.reading->free,
                                       .others = placement_.OthersOn(device.config.ordinal),
                                       .utilisation = device.reading->utilisation};
  }
  return view;
}

absl::Status Devices::CheckDeviceRecords(const RecordViews& records, const ArchiveOrigin& origin) const {
  const auto is_earlier = [](const auto& record, const RecordKey& key) { return record.first < key; };
  auto it = std::lower_bound(records.begin(), records.end(), KeyOf(RecordKind::kDevice, 0), is_earlier);
  for (; it != records.end() && it->first.kind == static_cast<uint32_t>(RecordKind::kDevice); ++it) {
    DeviceLedgerRecord record;
    ArchiveReader archive(it->second, origin);
    archive(record);
    // Managers::Restore() reports the unreadable record.
    if (!archive.Finish().ok()) return absl::OkStatus();
    if (IsUnidentified(record)) continue;
    const auto found = devices_.find(static_cast<uint32_t>(it->first.id));
    const std::string now = found == devices_.end() ? "missing" : found->second.config.uuid;
    if (now == record.uuid || (record.uuid.empty() && found != devices_.end())) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the ledger's leases are of other devices: device ", it->first.id, " was ",
                     record.uuid.empty() ? "present" : record.uuid, " and is ", now,
                     "; start the daemon with the previous devices, or end the leases"));
  }
  return absl::OkStatus();
}

bool Devices::WriteDevice(uint64_t ordinal, ArchiveWriter& archive) const {
  const auto found = devices_.find(static_cast<uint32_t>(ordinal));
  if (found == devices_.end()) return false;
  const Device& device = found->second;
  archive(DeviceLedgerRecord{.context = device.context.state != DeviceState::kIdle,
                             .lost_before = device.context.lost_before,
                             .daemon = device.account.counts().daemon,
                             .context_bytes = device.context_bytes,
                             .drain_known = device.drain_known,
                             .drain_reason = device.drain_reason,
                             .lost = device.lost,
                             .tested = device.tested,
                             .uuid = device.config.uuid});
  return true;
}

void Devices::ReadDevice(uint64_t ordinal, ArchiveReader& archive) {
  DeviceLedgerRecord record;
  archive(record);
  if (archive.failed() || ordinal >= kMaxDeviceOrdinals) return archive.Fail();
  const auto found = devices_.find(static_cast<uint32_t>(ordinal));
  if (found == devices_.end()) {
    if (!IsUnidentified(record)) return archive.Fail();
    departed_.insert(static_cast<uint32_t>(ordinal));
    // Erases the record.
    return core_.journal.Touch(RecordKind::kDevice, ordinal);
  }
  Device& device = found->second;
  // The supervisor reports its actual state.
  if (record.context) device.context.state = DeviceState::kRebuilding;
  device.context.lost_before = record.lost_before;
  device.account.set_daemon(record.daemon);
  // The configuration takes precedence; earlier brokers wrote 0 where the driver had not reported the size.
  if (device.config.measure_context && record.context_bytes.value_or(Bytes()) > Bytes()) {
    device.context_bytes = record.context_bytes;
    placement_.SetContext(found->first, *record.context_bytes);
  }
  device.drain_known = record.drain_known;
  device.drain_reason = record.drain_reason;
  device.lost = record.lost;
  device.tested = record.tested;
}

absl::Status Devices::CheckDevices() const {
  for (const auto& [ordinal, device] : devices_) {
    if (!IsPlaced(device)) return Broken("a device has changed, and its capacity is not marked for a new search");
    uint64_t warm_blocks = 0;
    uint64_t releasing = 0;
    uint64_t of_context = 0;
    bool unasked = false;
    std::set<BlockId> retried_later;
    for (const Retry& retry : device.retries) {
      if (retry.after_release > device.releases_ended) retried_later.insert(retry.block);
    }
    core_.blocks.table().ForEach([&, ordinal = ordinal, &device = device](const Block& block) {
      if (block.device != ordinal) return;
      warm_blocks += block.phase == BlockPhase::kWarm || block.phase == BlockPhase::kWarming ? 1 : 0;
      releasing += block.phase == BlockPhase::kRetired && block.asked ? 1 : 0;
      of_context += block.worker_kind() == WorkerKind::kContext ? 1 : 0;
      const Worker& worker = device.worker(block.worker_kind());
      const bool retired = block.phase == BlockPhase::kRetired && !block.asked && !block.stuck;
      unasked = unasked || (retired && core_.blocks.IsLost(block) && !core_.fences.IsBusy(block.id));
      if (worker.state != DeviceState::kReady) return;
      unasked = unasked || (retired && !core_.fences.IsBusy(block.id)) ||
                (block.phase == BlockPhase::kReserved && !block.asked && !retried_later.contains(block.id)) ||
                (block.phase == BlockPhase::kWarming && !block.asked);
    });
    const auto broken = [ordinal = ordinal](absl::string_view what) {
      return Broken(absl::StrCat("device ", ordinal, ": ", what));
    };
    if (warm_blocks != device.warm.All().size()) return broken("a warm block is not in the cache");
    if (releasing != device.releases_asked - device.releases_ended) return broken("a release is miscounted");
    if (unasked) return broken("a worker did not receive a command");
    const Worker& context = device.context;
    if (of_context != context.blocks) return broken("the context worker's blocks are miscounted");
    const bool idle = context.state == DeviceState::kReady && of_context == 0;
    if (idle != (context.idle_at != absl::InfiniteFuture())) return broken("an unneeded context worker stays");
    if (device.account.warm() > core_.config.warm_limit) return broken("the warm blocks exceed their limit");
  }
  return absl::OkStatus();
}

}  // namespace berth::core
