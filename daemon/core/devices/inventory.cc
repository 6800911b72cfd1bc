// The monitor's reports on devices, their consequences, draining, and islands.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/label.h"
#include "common/status_macros.h"
#include "daemon/core/devices/devices.h"
#include "daemon/core/managers.h"
#include "daemon/core/types/record_kind.h"

namespace berth::core {
namespace {

// A driver call that hangs for one device has the monitor ended at growing intervals: each time the other devices lose
// a second.
constexpr absl::Duration kLongestPatience = absl::Minutes(10);

}  // namespace

void Devices::MonitorUp(StepContext& step) {
  for (auto& [ordinal, device] : devices_) device.survey_due = step.now + device.survey_patience;
}

void Devices::MonitorDown(StepContext&) {
  for (auto& [ordinal, device] : devices_) device.survey_due = absl::InfiniteFuture();
}

void Devices::DeviceSurveyed(StepContext& step, uint32_t device, const DeviceSurvey& survey) {
  const auto found = devices_.find(device);
  if (found == devices_.end()) return;
  Device& seen = found->second;
  seen.survey_patience = core_.config.calls.base;
  seen.survey_due = step.now + seen.survey_patience;
  if (seen.main.state == DeviceState::kDropped) return;
  if (survey.nvlink_peers.has_value() && *survey.nvlink_peers != seen.nvlink_peers) {
    seen.nvlink_peers = *survey.nvlink_peers;
    UpdateIslands();
    MarkDevicesChanged(step);
  }
  if (survey.lost) {
    if (!std::exchange(seen.lost, true)) step.journal->Touch(RecordKind::kDevice, device);
    if (!seen.main.in_service()) return;
    const std::string why = survey.trouble.empty() ? "the driver has lost the device" : survey.trouble;
    for (const WorkerKind worker_kind : kWorkerKinds) seen.worker(worker_kind).last_failure = why;
    SendCommand(step, seen, WorkerKind::kMain, WorkerCommand::kLose, why);
    for (const WorkerKind worker_kind : kWorkerKinds) core_.workers.RefuseWaiting(step, seen, worker_kind);
  } else if (seen.lost && seen.main.state == DeviceState::kStopped && !seen.main.abandoned) {
    Enable(step, seen);
  }
}

void Devices::Enable(StepContext& step, Device& device) {
  for (const WorkerKind worker_kind : kWorkerKinds) {
    // A worker that survives SIGKILL is not replaced until it ends.
    if (device.worker(worker_kind).state != DeviceState::kStopped || device.worker(worker_kind).abandoned) continue;
    SendCommand(step, device, worker_kind, WorkerCommand::kEnable, "");
  }
}

void Devices::EndHungMonitor(StepContext& step) {
  const Device* hung = nullptr;
  for (auto& [ordinal, device] : devices_) {
    if (device.survey_due > step.now) continue;
    hung = &device;
    device.survey_patience = std::min(2 * device.survey_patience, kLongestPatience);
  }
  if (hung == nullptr) return;
  for (auto& [ordinal, device] : devices_) device.survey_due = absl::InfiniteFuture();
  step.Emit(SendWorkerCommand{.device = hung->config.ordinal,
                              .command = WorkerCommand::kKillMonitor,
                              .why = absl::StrCat("no reading received for device ", hung->config.ordinal)});
}

absl::StatusOr<DeviceView> Devices::DrainDevice(StepContext& step, uint32_t device, const std::string& reason) {
  BERTH_ASSIGN_OR_RETURN(Device* const found, FindForOperator(device));
  found->drain_known = true;
  found->drain_reason = reason.empty() ? "drained by an operator" : ToLabel(reason);
  SendCommand(step, *found, WorkerKind::kMain, WorkerCommand::kDrain, found->drain_reason);
  RefuseDrained(step, *found);
  return ViewDevice(*found);
}

absl::StatusOr<DeviceView> Devices::UndrainDevice(StepContext& step, uint32_t device) {
  BERTH_ASSIGN_OR_RETURN(Device* const found, FindForOperator(device));
  found->drain_known = true;
  step.journal->Touch(RecordKind::kDevice, device);
  if (found->drain_reason.empty()) return ViewDevice(*found);
  found->drain_reason.clear();
  SendCommand(step, *found, WorkerKind::kMain, WorkerCommand::kUndrain, "");
  step.MarkCapacityChanged();
  return ViewDevice(*found);
}

void Devices::RefuseDrained(StepContext& step, Device& device) {
  const absl::Status why = Draining(device);
  std::vector<RequestId> requests;
  for (const WorkerKind worker_kind : kWorkerKinds) {
    for (const uint64_t number : core_.byte_queue.table().Of(device.config.ordinal, worker_kind)) {
      requests.push_back(core_.byte_queue.table().FindNumber(number)->request);
    }
  }
  for (const RequestId& request : requests) core_.byte_queue.TurnAway(step, request, why);
  // Warm blocks serve later requests, and a drained device gets none.
  for (const BlockId warm : device.warm.All()) core_.blocks.Abandon(step, *core_.blocks.Find(warm));
  step.MarkCapacityChanged();
}

absl::Status Devices::Draining(const Device& device) {
  return Refuse(Reason::kDeviceDraining, "device {device} is being drained: {why}",
                {{"device", device.config.ordinal}, {"why", device.drain_reason}});
}

void Devices::UpdateIslands() {
  for (auto& [ordinal, device] : devices_) device.island = ordinal;
  // Each device takes the least island number among its neighbours until nothing changes: at most one round per device.
  for (bool changed = true; changed;) {
    changed = false;
    for (auto& [ordinal, device] : devices_) {
      if (device.main.state == DeviceState::kDropped) continue;
      for (auto& [other, peer] : devices_) {
        if (peer.main.state == DeviceState::kDropped) continue;
        const bool named =
            device.config.facts.island.has_value() && device.config.facts.island == peer.config.facts.island;
        const bool linked =
            named || ((device.nvlink_peers >> other) & 1) != 0 || ((peer.nvlink_peers >> ordinal) & 1) != 0;
        if (!linked || peer.island >= device.island) continue;
        device.island = peer.island;
        changed = true;
      }
    }
  }
  for (const auto& [ordinal, device] : devices_) placement_.SetIsland(ordinal, device.island);
}

std::vector<IslandView> Devices::ListIslands() const {
  std::vector<IslandView> views;
  for (const auto& [ordinal, device] : devices_) {
    if (device.main.state == DeviceState::kDropped) continue;
    views.push_back({.ordinal = ordinal,
                     .uuid = device.config.uuid,
                     .generation = device.main.generation,
                     .island = device.island});
  }
  return views;
}

// ---- The driver's readings of a device: free bytes, the processes that use them, and utilisation -------------

void Devices::DeviceRead(StepContext& step, uint32_t device, const DeviceReading& reading) {
  const auto found = devices_.find(device);
  if (found == devices_.end()) return;
  Device& read = found->second;
  if (read.reading.has_value() && reading.taken < read.reading->taken) return;
  // Activity is known from the first reading on; before it, no permit counts as idle.
  const bool first = !read.reading.has_value() || !read.reading->utilisation.has_value();
  if (first || reading.utilisation.value_or(1) > 0) read.busy_at = reading.taken;
  if (reading.utilisation.has_value()) read.utilisation.Add(reading.taken, *reading.utilisation);
  std::map<int32_t, absl::Time> seen;
  for (const ProcessReading& process : reading.processes) {
    const auto before = read.seen.find(process.pid);
    seen[process.pid] = before == read.seen.end() ? reading.taken : before->second;
  }
  read.seen = std::move(seen);
  read.reading = reading;
  placement_.Measure(device, UsageOf(read, PidsOfSessions()));
  // This reading may be the first after a gap.
  placement_.SetNow(step.now);
}

Devices::SessionsByPid Devices::PidsOfSessions() const {
  SessionsByPid pids;
  core_.sessions.table().ForEachChannel([&](const Channel& channel) { pids[channel.process.pid] = channel.session; });
  return pids;
}

SessionId Devices::SessionOf(const SessionsByPid& pids, const ProcessReading& process) {
  const auto own = pids.find(process.pid);
  if (own != pids.end()) return own->second;
  // A process started by a command under `berth run` belongs to that session.
  for (const int32_t ancestor : process.ancestors) {
    const auto found = pids.find(ancestor);
    if (found != pids.end()) return found->second;
  }
  return SessionId();
}

Placement::Usage Devices::UsageOf(const Device& device, const SessionsByPid& pids) {
  const DeviceReading& reading = *device.reading;
  Placement::Usage usage{.taken = reading.taken, .others = reading.rest};
  const auto add = [](Bytes* sum, Bytes bytes) {
    *sum = CheckedAdd(*sum, bytes).value_or(Bytes(std::numeric_limits<uint64_t>::max()));
  };
  Bytes listed = reading.rest;
  for (const ProcessReading& process : reading.processes) {
    // The ledger covers the daemon's own bytes: the blocks and contexts of its workers.
    if (process.daemon) continue;
    add(&listed, process.bytes);
    const SessionId session = SessionOf(pids, process);
    add(session ? &usage.sessions[session] : &usage.others, process.bytes);
  }
  // Adds bytes that the driver has allocated but lists for no process, beyond the ledger's bytes. These are the
  // driver's own bytes and those of hidden processes. The driver lists blocks for no process that maps them
  // (docs/design/0013).
  const Bytes ledger = device.account.counts().charged();
  const Bytes given = SaturatingSub(reading.total, reading.free);
  add(&usage.others, SaturatingSub(given, CheckedAdd(listed, ledger).value_or(given)));
  return usage;
}

void Devices::SetReadings(PermitView* permit) const {
  absl::Duration idle = absl::InfiniteDuration();
  bool known = true;
  for (const auto& [ordinal, device] : devices_) {
    if (permit->device.has_value() && permit->device->ordinal != ordinal) continue;
    const std::optional<uint32_t> mean = device.utilisation.MeanSince(permit->granted_at);
    if (mean.has_value()) permit->utilisation = std::max(permit->utilisation.value_or(0), *mean);
    known = known && device.reading.has_value() && device.reading->utilisation.has_value();
    if (known) idle = std::min(idle, device.reading->taken - std::max(permit->granted_at, device.busy_at));
  }
  if (known && idle < absl::InfiniteDuration() &&
      idle >= core_.permits.pools().at(permit->pool).config().idle_warning) {
    permit->idle = idle;
  }
}

std::vector<StrayView> Devices::ListStrays(const Caller& caller) const {
  std::vector<StrayView> strays;
  const SessionsByPid pids = PidsOfSessions();
  for (const auto& [ordinal, device] : devices_) {
    if (!device.reading.has_value()) continue;
    for (const ProcessReading& process : device.reading->processes) {
      if (process.daemon || (!caller.sees_all() && process.uid != caller.tenant.uid)) continue;
      const SessionId session = SessionOf(pids, process);
      if (session && core_.permits.HasPermit(session)) continue;
      strays.push_back({.device = ordinal,
                        .uuid = device.config.uuid,
                        .process = process,
                        .session = session,
                        .since = device.seen.at(process.pid)});
    }
  }
  std::sort(strays.begin(), strays.end(), [](const StrayView& a, const StrayView& b) {
    return std::tie(a.device, a.process.pid) < std::tie(b.device, b.process.pid);
  });
  return strays;
}

}  // namespace berth::core
