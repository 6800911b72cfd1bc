// The driver's readings of a device: free bytes, the processes that use them, and utilisation.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "daemon/core/devices/devices.h"
#include "daemon/core/managers.h"

namespace berth::core {

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
