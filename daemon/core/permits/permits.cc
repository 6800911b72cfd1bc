#include "daemon/core/permits/permits.h"

#include <algorithm>
#include <utility>

#include <berth/error.h>

#include "common/status_macros.h"
#include "daemon/core/managers.h"
#include "daemon/core/permits/permit_transaction.h"
#include "daemon/core/permits/pool_change.h"
#include "daemon/core/plans/plan_transaction.h"
#include "daemon/core/requests/fingerprint.h"
#include "daemon/core/requests/undo_step.h"

namespace berth::core {
namespace {

absl::Status NoPool(absl::string_view name) {
  return Refuse(Reason::kNotFound, "no {kind} {id}", {{"kind", "permit pool"}, {"id", name}});
}

}  // namespace

Permits::Permits(Managers& core, FindPermitSlot find, FindTakeUpWords find_take_up)
    : core_(core),
      permit_slots_(std::move(find)),
      find_take_up_(std::move(find_take_up)),
      gangs_(&core.journal) {}

void Permits::Acquire(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                      const AcquireRequest& request) {
  const auto admitted = core_.requests.Admit(step, call, caller, tag, FingerprintOf(request), request.deadline);
  if (!admitted.has_value()) return;
  PermitPool* const pool = FindPool(request.pool);
  if (pool == nullptr) return core_.requests.Answer(step, admitted->request, NoPool(request.pool));
  const Requester requester{.session = admitted->session.id,
                            .tenant = admitted->session.tenant,
                            .process = admitted->channel.process,
                            .of_operator = admitted->session.of_operator};
  PermitTransaction transaction(core_, &step);
  const Waiter* const waiter = pool->Acquire(transaction.step(), admitted->request, requester, request);
  core_.requests.SetPlace(admitted->request, this,
                          {.pool = pool, .waiter = waiter, .number = waiter == nullptr ? 0 : waiter->number});
  transaction.Answer();
  core_.requests.MarkWaiting(admitted->request);
  BeginWait(step, admitted->request);
}

void Permits::Release(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                      AcquisitionId acquisition) {
  const auto admitted = core_.requests.Admit(step, call, caller, tag, FingerprintOf(acquisition));
  if (!admitted.has_value()) return;
  const absl::StatusOr<ReleaseResult> result = ReleaseAcquisition(step, admitted->session.id, acquisition);
  if (result.ok()) {
    core_.requests.Answer(step, admitted->request, Response(*result));
  } else {
    core_.requests.Answer(step, admitted->request, result.status());
  }
}

void Permits::ReleaseIfIdle(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                            const ReleaseIfIdleRequest& request) {
  const auto admitted = core_.requests.Admit(step, call, caller, tag, FingerprintOf(request));
  if (!admitted.has_value()) return;
  const ReleaseResult result = PermitTransaction(core_, &step).ReleaseIfIdle(admitted->session.id, request.acquisition);
  core_.requests.Answer(step, admitted->request, Response(result));
}

absl::StatusOr<ReleaseResult> Permits::GiveBack(StepContext& step, ChannelId channel, AcquisitionId acquisition,
                                                bool if_idle) {
  const Channel* const found = core_.sessions.table().FindChannel(channel);
  const SessionId session = found == nullptr ? SessionId() : found->session;
  if (if_idle) return PermitTransaction(core_, &step).ReleaseIfIdle(session, acquisition);
  return ReleaseAcquisition(step, session, acquisition);
}

void Permits::KeepPermits(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                          const KeepPermitsRequest& request) {
  const auto admitted = core_.requests.Admit(step, call, caller, tag, FingerprintOf(request));
  if (!admitted.has_value()) return;
  if (const absl::Status capacity = core_.sessions.MayDeliver(admitted->channel); !capacity.ok()) {
    return core_.requests.Answer(step, admitted->request, capacity);
  }
  core_.fences.SendOwnPage(step, admitted->request);
  core_.requests.Answer(step, admitted->request, Response(KeepPermitsResult()));
}

void Permits::EndCachingBy(StepContext& step, ChannelId channel) {
  ForgetOffersOf(channel);
  PermitTransaction transaction(core_, &step);
  for (auto& [name, pool] : pools_) pool.EndCachingBy(transaction.step(), channel);
  transaction.Answer();
}

absl::StatusOr<PoolView> Permits::SetPool(StepContext& step, absl::string_view pool, const PoolChange& change) {
  PermitPool* const found = FindPool(pool);
  if (found == nullptr) return NoPool(pool);
  BERTH_RETURN_IF_ERROR(CheckChange(change));
  PermitTransaction transaction(core_, &step);
  found->Change(transaction.step(), change);
  // Under the new limits a gang may stand aside in every pool that it waits in.
  step.dirty.pools = step.dirty.pools || !gangs_.gangs().empty();
  transaction.Reconsider();
  transaction.Answer();
  // Some outstanding permits may already be past the new limits.
  core_.Expire(step);
  return found->View();
}

absl::StatusOr<PermitView> Permits::RevokePermit(StepContext& step, PermitId permit, uint32_t by_uid) {
  for (auto& [name, pool] : pools_) {
    PermitTransaction transaction(core_, &step);
    std::optional<PermitView> revoked = pool.Revoke(transaction.step(), permit, LeaseEnd::kRevoked);
    if (!revoked.has_value()) continue;
    transaction.Answer();
    NotifyRevoked(step, *revoked, {.reason = EndReason::kRevoked, .uid = by_uid});
    core_.sessions.FinishIfOver(step, *core_.sessions.table().Find(revoked->session));
    return *std::move(revoked);
  }
  return Refuse(Reason::kNotFound, "no {kind} {id}", {{"kind", "permit"}, {"id", permit.value()}});
}

void Permits::SetQuotas(StepContext& step, const QuotaTable& quotas) {
  core_.sessions.tenant_use().SetQuotas(quotas);
  PermitTransaction transaction(core_, &step);
  transaction.Reconsider();
  for (auto& [name, pool] : pools_) pool.Reconsider(transaction.step());
  transaction.Answer();
}

void Permits::NotifyOverdue(StepContext& step, const PermitView& permit) {
  core_.sessions.PostToSession(step, permit.session,
                               {.what = attach::DeliveryKind::kOverdue, .permit = permit.id.value()});
}

void Permits::NotifyRevoked(StepContext& step, const PermitView& permit, const EndNotice& end) {
  core_.sessions.PostToSession(step, permit.session,
                               {.what = attach::DeliveryKind::kRevoked,
                                .owner = end.uid,
                                .permit = permit.id.value(),
                                .why = static_cast<uint64_t>(end.reason)});
  PlanTransaction(core_, &step).MarkRevoked(permit);
}

void Permits::ServePlaced(StepContext& step) {
  core_.devices.UpdatePlacement();
  const Placement::Changes changes = core_.devices.placement().TakeChanges();
  bool again = changes.verdicts || changes.never;
  PermitTransaction transaction(core_, &step);
  if (changes.never) {
    transaction.Reconsider();
    for (auto& [name, pool] : pools_) pool.Reconsider(transaction.step());
  }
  // A gang that was removed may leave units to later waiters in pools already served. Once the last waiter of a tenant
  // at its quota is answered, cached permits stay with their processes.
  again = std::exchange(step.dirty.pools, false) || again;
  while (core_.sessions.tenant_use().TakeChanged() || again) {
    for (auto& [name, pool] : pools_) pool.Serve(transaction.step());
    transaction.Answer();
    again = std::exchange(step.dirty.pools, false);
  }
  transaction.Answer();
}

PermitPool* Permits::FindPool(absl::string_view name) {
  const auto found = pools_.find(std::string(name));
  return found == pools_.end() ? nullptr : &found->second;
}

absl::StatusOr<ReleaseResult> Permits::ReleaseAcquisition(StepContext& step, SessionId session,
                                                          AcquisitionId acquisition, LeaseEnd how) {
  if (const auto offered = offered_.find(acquisition); offered != offered_.end()) {
    // A process that releases the grant has taken it up, or has its request forgotten.
    RemoveOffer(RequestId(offered->second));
  }
  for (auto& [name, pool] : pools_) {
    if (!pool.Holds(session, acquisition)) continue;
    PermitTransaction transaction(core_, &step);
    const ReleaseResult result = pool.Release(transaction.step(), acquisition, how);
    transaction.Answer();
    return result;
  }
  return Refuse(Reason::kNotFound, "no {kind} {id} in this session",
                {{"kind", "acquisition"}, {"id", acquisition.value()}});
}

bool Permits::HasPermit(SessionId session) const {
  return std::any_of(pools_.begin(), pools_.end(), [&](const auto& pool) { return pool.second.UnitsOf(session) > 0; });
}

void Permits::AddPool(const PoolConfig& config) {
  PermitPool& pool =
      pools_
          .try_emplace(config.name,
                       PermitPool::Options{.config = config,
                                           .max_waiters = core_.config.limits.waiters_per_pool,
                                           .max_operator_waiters = core_.config.limits.operator_waiters_per_pool,
                                           .passes_before_hold = core_.config.limits.passes_before_hold,
                                           .epoch = core_.config.epoch,
                                           .tenants = &core_.sessions.tenant_use(),
                                           .leases = core_.leases.log()},
                       &permit_ids_, &core_.devices.placement(), &core_.journal, &permit_slots_)
          .first->second;
  pools_by_number_.emplace(pool.number(), &pool);
}

void Permits::ServeAll(StepContext& step) {
  PermitTransaction transaction(core_, &step);
  for (auto& [name, pool] : pools_) pool.Serve(transaction.step());
  transaction.Answer();
}

void Permits::ReturnAll(StepContext& step, SessionId session) {
  PermitTransaction transaction(core_, &step);
  for (auto& [name, pool] : pools_) pool.ReturnAll(transaction.step(), session);
  transaction.Answer();
}

void Permits::SetPaused(StepContext& step, bool paused) {
  PermitTransaction transaction(core_, &step);
  for (auto& [name, pool] : pools_) pool.SetPaused(transaction.step(), paused);
  transaction.Answer();
}

// ---- WaitPlace ------------------------------------------------------------------------------------------------

bool Permits::SetDeadline(const RequestId& request, const WaitTicket& ticket, absl::Time deadline) {
  if (ticket.pool != nullptr) {
    ticket.pool->SetDeadline(ticket.number, deadline);
  } else {
    gangs_.SetDeadline(request, deadline);
  }
  return true;
}

void Permits::Leave(StepContext&, const RequestId& request, const WaitTicket& ticket) {
  if (ticket.pool != nullptr) return ticket.pool->Leave(ticket.number);
  const Gang gang = gangs_.Take(request);
  for (const Gang::Part& part : gang.parts) part.pool->Leave(gang.number);
}

void Permits::Expire(StepContext& step) {
  core_.devices.placement().SetNow(step.now);
  ResolveOverdueOffers(step);
  LookAtWaiters(step);
  PermitTransaction transaction(core_, &step);
  std::vector<PermitView> revoked, overdue;
  transaction.Expire();
  for (auto& [name, pool] : pools_) pool.Expire(transaction.step(), &revoked, &overdue);
  transaction.Answer();
  for (const PermitView& permit : overdue) NotifyOverdue(step, permit);
  for (const PermitView& permit : revoked) NotifyRevoked(step, permit, {.reason = EndReason::kHoldLimit});
  for (const PermitView& permit : revoked) {
    // The session may have ended and been waiting for this permit only.
    if (const Session* const session = core_.sessions.table().Find(permit.session)) {
      core_.sessions.FinishIfOver(step, *session);
    }
  }
}

absl::Time Permits::next_deadline() const {
  absl::Time next = std::min({gangs_.next_deadline(), next_offer(), look_at_});
  for (const auto& [name, pool] : pools_) next = std::min(next, pool.next_deadline());
  return next;
}

void Permits::Reattach(StepContext& step, const RequestId& request, const WaitTicket& ticket) {
  PermitTransaction transaction(core_, &step);
  if (ticket.pool != nullptr) {
    ticket.pool->Attach(transaction.step(), ticket.number);
    ticket.pool->Serve(transaction.step());
  } else {
    const Gang& gang = *gangs_.Find(request);
    for (const Gang::Part& part : gang.parts) part.pool->Attach(transaction.step(), gang.number);
    step.dirty.pools = true;
  }
  transaction.Answer();
  BeginWait(step, request);
}

bool Undo(const UndoStep& undo, const AcquireResult& result) {
  return undo.core.permits
      .ReleaseAcquisition(undo.step, undo.channel.session, result.acquisition, LeaseEnd::kForgotten)
      .ok();
}

}  // namespace berth::core
