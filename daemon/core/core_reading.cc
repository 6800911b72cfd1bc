// What the driver says of a device: how much is free, who has it, whether it is at anything.

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "daemon/core/core_impl.h"

namespace berth::core {

void Core::DeviceRead(absl::Time now, uint32_t device, const DeviceReading& reading, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto found = impl_->devices_.find(device);
  if (found == impl_->devices_.end()) return;
  Device& read = found->second;
  if (read.reading.has_value() && reading.taken < read.reading->taken) return;
  // From the first reading on it is known, and until then nobody is called idle.
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
  impl_->placement_.Measure(device, impl_->UsageOf(read, impl_->PidsOfSessions()));
  // It may be the first for a while.
  impl_->placement_.SetNow(now);
}

Core::Impl::SessionsByPid Core::Impl::PidsOfSessions() const {
  SessionsByPid pids;
  sessions_.ForEachChannel([&](const Channel& channel) { pids[channel.process.pid] = channel.session; });
  return pids;
}

SessionId Core::Impl::SessionOf(const SessionsByPid& pids, const ProcessReading& process) {
  const auto own = pids.find(process.pid);
  if (own != pids.end()) return own->second;
  // What a command under `berth run` starts is that session's.
  for (const int32_t ancestor : process.ancestors) {
    const auto found = pids.find(ancestor);
    if (found != pids.end()) return found->second;
  }
  return SessionId();
}

Placement::Usage Core::Impl::UsageOf(const Device& device, const SessionsByPid& pids) {
  const DeviceReading& reading = *device.reading;
  Placement::Usage usage{.taken = reading.taken, .others = reading.rest};
  const auto add = [](Bytes* sum, Bytes bytes) {
    *sum = CheckedAdd(*sum, bytes).value_or(Bytes(std::numeric_limits<uint64_t>::max()));
  };
  Bytes listed = reading.rest;
  for (const ProcessReading& process : reading.processes) {
    // The daemon's own are in the ledger: the blocks and the context of its workers.
    if (process.daemon) continue;
    add(&listed, process.bytes);
    const SessionId session = SessionOf(pids, process);
    add(session ? &usage.sessions[session] : &usage.others, process.bytes);
  }
  // What the driver has given out and lists nobody for, beside the ledger's: its own, and whom it does not show. Blocks
  // it lists for nobody who maps them (docs/design/0013).
  const Bytes ledger = device.account.counts().charged();
  const Bytes given = SaturatingSub(reading.total, reading.free);
  add(&usage.others, SaturatingSub(given, CheckedAdd(listed, ledger).value_or(given)));
  return usage;
}

bool Core::Impl::HasPermit(SessionId session) const {
  return std::any_of(pools_.begin(), pools_.end(),
                     [&](const auto& pool) { return pool.second.UnitsOf(session) > 0; });
}

void Core::Impl::SetReadings(PermitView* permit) const {
  absl::Duration idle = absl::InfiniteDuration();
  bool known = true;
  for (const auto& [ordinal, device] : devices_) {
    if (permit->device.has_value() && permit->device->ordinal != ordinal) continue;
    const std::optional<uint32_t> mean = device.utilisation.MeanSince(permit->granted_at);
    if (mean.has_value()) permit->utilisation = std::max(permit->utilisation.value_or(0), *mean);
    known = known && device.reading.has_value() && device.reading->utilisation.has_value();
    if (known) idle = std::min(idle, device.reading->taken - std::max(permit->granted_at, device.busy_at));
  }
  if (known && idle < absl::InfiniteDuration() && idle >= pools_.at(permit->pool).config().idle_warning) {
    permit->idle = idle;
  }
}

std::vector<StrayView> Core::ListStrays(const Caller& caller) const {
  std::vector<StrayView> strays;
  const Impl::SessionsByPid pids = impl_->PidsOfSessions();
  for (const auto& [ordinal, device] : impl_->devices_) {
    if (!device.reading.has_value()) continue;
    for (const ProcessReading& process : device.reading->processes) {
      if (process.daemon || (!caller.sees_all() && process.uid != caller.tenant.uid)) continue;
      const SessionId session = Impl::SessionOf(pids, process);
      if (session && impl_->HasPermit(session)) continue;
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
