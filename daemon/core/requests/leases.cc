#include "daemon/core/requests/leases.h"

#include <algorithm>
#include <string>

#include "daemon/core/managers.h"

namespace berth::core {
namespace {

void AddDevice(const std::string& uuid, LeaseRecord* lease) {
  if (!lease->devices.empty()) lease->devices += ',';
  lease->devices += uuid;
}

}  // namespace

LeaseRecord Leases::LeaseOf(const Block& block) const {
  return {.kind = LeaseKind::kBlock,
          .id = block.id.value(),
          .session = block.owner,
          .tenant = block.tenant,
          .label = block.label,
          .bytes = block.bytes,
          .devices = core_.devices.At(block.device).config.uuid,
          .granted_at = block.live_since};
}

LeaseRecord Leases::LeaseOf(const Reservation& reservation) const {
  LeaseRecord lease{.kind = LeaseKind::kReservation,
                    .id = reservation.id.value(),
                    .session = reservation.session,
                    .tenant = reservation.tenant,
                    .label = reservation.label,
                    .granted_at = reservation.since};
  for (const auto& [device, claim] : reservation.claims) {
    lease.bytes = CheckedAdd(lease.bytes, claim.bytes).value_or(lease.bytes);
    AddDevice(core_.devices.At(device).config.uuid, &lease);
  }
  return lease;
}

LeaseRecord Leases::LeaseOf(const Plan& plan) const {
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
  // Allocates once: the requester waits for the record of a plan with many devices.
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

void Leases::RecordGrant(StepContext& step, LeaseRecord&& lease, const RequestId& request) {
  lease.process = core_.sessions.table().FindChannel(request.channel)->process;
  lease.waited = std::max(step.now - core_.requests.At(request).since, absl::ZeroDuration());
  leases_.RecordGrant(std::move(lease));
}

LeaseEnd Leases::EndFor(LogCause cause) {
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

std::vector<LeaseRecord> Leases::ListLeases() const {
  std::vector<LeaseRecord> leases;
  for (const auto& [name, pool] : core_.permits.pools()) pool.AddLeases(&leases);
  core_.blocks.table().ForEach([&](const Block& block) {
    if (block.phase == BlockPhase::kLive) leases.push_back(LeaseOf(block));
  });
  core_.reservations.table().ForEach([&](const Reservation& reservation) { leases.push_back(LeaseOf(reservation)); });
  core_.plans.table().ForEachAfter(0, [&](const Plan& plan) {
    leases.push_back(LeaseOf(plan));
    return true;
  });
  return leases;
}

}  // namespace berth::core
