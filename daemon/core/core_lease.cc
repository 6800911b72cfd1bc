// What is told of leases as they begin and end, and all that are out.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "daemon/core/core_impl.h"

namespace berth::core {
namespace {

void AddDevice(const std::string& uuid, LeaseRecord* lease) {
  if (!lease->devices.empty()) lease->devices += ',';
  lease->devices += uuid;
}

}  // namespace

LeaseRecord Core::Impl::LeaseOf(const Block& block) const {
  return {.kind = LeaseKind::kBlock,
          .id = block.id.value(),
          .session = block.owner,
          .tenant = block.tenant,
          .label = block.label,
          .bytes = block.bytes,
          .devices = devices_.at(block.device).config.uuid,
          .granted_at = block.live_since};
}

LeaseRecord Core::Impl::LeaseOf(const Reservation& reservation) const {
  LeaseRecord lease{.kind = LeaseKind::kReservation,
                    .id = reservation.id.value(),
                    .session = reservation.session,
                    .tenant = reservation.tenant,
                    .label = reservation.label,
                    .granted_at = reservation.since};
  for (const auto& [device, claim] : reservation.claims) {
    lease.bytes = CheckedAdd(lease.bytes, claim.bytes).value_or(lease.bytes);
    AddDevice(devices_.at(device).config.uuid, &lease);
  }
  return lease;
}

LeaseRecord Core::Impl::LeaseOf(const Plan& plan) const {
  const PlanLayout& layout = *plan.layout;
  LeaseRecord lease{.kind = LeaseKind::kPlan,
                    .id = layout.id.value(),
                    .session = layout.session,
                    .tenant = layout.tenant,
                    .label = layout.asked.label,
                    .pool = layout.asked.pool,
                    .units = layout.asked.units,
                    .granted_at = layout.since};
  size_t size = 0;
  for (const PlanDevice& device : layout.devices) size += device.units > 0 ? device.uuid->size() + 1 : 0;
  // In one piece: a plan of many devices is noted by whoever makes it.
  lease.devices.resize(size);
  char* at = lease.devices.data();
  for (const PlanDevice& device : layout.devices) {
    if (device.units == 0) continue;
    at = std::copy(device.uuid->begin(), device.uuid->end(), at);
    *at++ = ',';
  }
  if (size > 0) lease.devices.pop_back();
  return lease;
}

void Core::Impl::NoteGrant(const Step& step, LeaseRecord&& lease, const RequestId& request) {
  lease.process = sessions_.FindChannel(request.channel)->process;
  lease.waited = std::max(step.now - pending_.at(request).since, absl::ZeroDuration());
  leases_.NoteGrant(std::move(lease));
}

LeaseEnd Core::Impl::EndFor(LogCause cause) {
  switch (cause) {
    case LogCause::kSessionEnd:
      return LeaseEnd::kSessionEnd;
    case LogCause::kForgotten:
      return LeaseEnd::kForgotten;
    case LogCause::kById:
      return LeaseEnd::kById;
    case LogCause::kExpired:
      return LeaseEnd::kExpired;
    case LogCause::kLost:
      return LeaseEnd::kLost;
    case LogCause::kNone:
    case LogCause::kLetGo:
    case LogCause::kProcessGone:
    case LogCause::kNeverSent:
      break;
  }
  return LeaseEnd::kReleased;
}

std::vector<LeaseRecord> Core::ListLeases() const {
  std::vector<LeaseRecord> leases;
  for (const auto& [name, pool] : impl_->pools_) pool.AddLeases(&leases);
  impl_->blocks_.ForEach([&](const Block& block) {
    if (block.phase == BlockPhase::kLive) leases.push_back(impl_->LeaseOf(block));
  });
  impl_->reservations_.ForEach(
      [&](const Reservation& reservation) { leases.push_back(impl_->LeaseOf(reservation)); });
  impl_->plans_.ForEachAfter(0, [&](const Plan& plan) {
    leases.push_back(impl_->LeaseOf(plan));
    return true;
  });
  return leases;
}

}  // namespace berth::core
