// The steps and checks that concern all managers.

#include "daemon/core/managers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "daemon/core/permits/permit_transaction.h"
#include "daemon/core/plans/plan_transaction.h"
#include "daemon/core/types/invariant.h"
#include "daemon/core/types/record_kind.h"

namespace berth::core {

Managers::Managers(Config the_config, Core::DrawId draw_id, ReadFenceValues read, FindPermitSlot find,
                   FindTakeUpWords find_take_up)
    : config(std::move(the_config)),
      draw_id(std::move(draw_id)),
      requests(*this),
      memory_log(*this),
      leases(*this),
      sessions(*this),
      shutdown(*this),
      permits(*this, std::move(find), std::move(find_take_up)),
      plans(*this),
      blocks(*this),
      allocations(*this),
      reservations(*this),
      byte_queue(*this),
      budgets(*this),
      fences(*this, std::move(read)),
      modules(*this, config.limits.modules, config.epoch),
      devices(*this),
      workers(*this) {
  journal.Touch(RecordKind::kCounters);
  for (const PoolConfig& pool : config.pools) permits.AddPool(pool);
  for (const DeviceConfig& device : config.devices) devices.Add(device);
  journal.Touch(RecordKind::kMemoryCounters);
  devices.UpdateIslands();
  devices.UpdatePlacement();
}

std::array<WaitPlace*, 5> Managers::places() { return {&permits, &fences, &byte_queue, &modules, &blocks}; }

void Managers::Begin(StepContext& step) {
  permits.BeginStep();
  Expire(step);
  requests.DropDetached(step);
  sessions.EndAwaited(step);
  allocations.RefillDue(step);
}

void Managers::Expire(StepContext& step) {
  for (WaitPlace* const place : places()) place->Expire(step);
}

absl::Time Managers::next_deadline() {
  absl::Time next = std::min(
      {requests.next_deadline(), sessions.next_deadline(), shutdown.next_deadline(), devices.next_deadline()});
  for (const WaitPlace* const place : places()) next = std::min(next, place->next_deadline());
  return next;
}

absl::Status Managers::CheckInvariants() {
  // Judges by the present capacity rather than that of the last step.
  devices.UpdatePlacement();
  BERTH_RETURN_IF_ERROR(CheckReferences());
  return CheckSums();
}

absl::Status Managers::CheckReferences() {
  BERTH_RETURN_IF_ERROR(sessions.table().CheckInvariants());
  BERTH_RETURN_IF_ERROR(blocks.table().CheckInvariants());
  BERTH_RETURN_IF_ERROR(sessions.mailboxes().CheckInvariants());
  for (const Session* const session : sessions.table().List()) {
    if (sessions.IsOver(*session) && !fences.IsLeaving(session->id)) {
      return Broken("an ended session is still in the table");
    }
  }
  BERTH_RETURN_IF_ERROR(requests.CheckPending());
  BERTH_RETURN_IF_ERROR(blocks.CheckBlocks());
  BERTH_RETURN_IF_ERROR(fences.CheckFences());
  BERTH_RETURN_IF_ERROR(modules.CheckInvariants());
  return PlanTransaction(*this, nullptr).CheckInvariants();
}

absl::Status Managers::CheckSums() {
  PermitTransaction transaction(*this, nullptr);
  for (const auto& [name, pool] : permits.pools()) BERTH_RETURN_IF_ERROR(pool.CheckInvariants(&transaction));
  BERTH_RETURN_IF_ERROR(permits.CheckPermits());
  BERTH_RETURN_IF_ERROR(sessions.CheckTenants());
  BERTH_RETURN_IF_ERROR(devices.CheckDevices());
  BERTH_RETURN_IF_ERROR(budgets.CheckBudgets());
  return byte_queue.CheckByteQueue();
}

}  // namespace berth::core
