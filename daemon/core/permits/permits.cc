#include "daemon/core/permits/permits.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"
#include "common/wire/attach_wire.h"
#include "daemon/core/managers.h"
#include "daemon/core/permits/permit_transaction.h"
#include "daemon/core/permits/pool_change.h"
#include "daemon/core/plans/plan_transaction.h"
#include "daemon/core/requests/fingerprint.h"
#include "daemon/core/requests/undo_step.h"
#include "daemon/core/requests/wait_weight.h"
#include "daemon/core/types/invariant.h"
#include "daemon/core/types/record_kind.h"

namespace berth::core {
namespace {

absl::Status NoPool(absl::string_view name) {
  return Refuse(Reason::kNotFound, "no {kind} {id}: `berth status` lists the pools",
                {{"kind", "permit pool"}, {"id", name}});
}

// Returns the number of the pool that a record belongs to.
uint64_t PoolOf(const RecordKey& key) {
  switch (static_cast<RecordKind>(key.kind)) {
    case RecordKind::kPermit:
    case RecordKind::kWaiter:
    case RecordKind::kAcquisition:
      return key.part;
    default:
      return key.id;
  }
}

}  // namespace

Permits::Permits(Managers& core, FindPermitSlot find, FindTakeUpWords find_take_up)
    : core_(core),
      // The process maps its page before it acknowledges the page.
      permit_slots_(std::move(find),
                    [&core](ChannelId channel) {
                      return !core.sessions.mailboxes().Owes(channel, attach::DeliveryKind::kOwnPage);
                    }),
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
  PoolChange resolved = change;
  BERTH_RETURN_IF_ERROR(ResolveDevices(core_.devices.placement(), found->config(), &resolved));
  PermitTransaction transaction(core_, &step);
  found->Change(transaction.step(), resolved);
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
  for (auto& [name, pool] : pools_) {
    if (!pool.Holds(session, acquisition)) continue;
    if (const auto offered = offered_.find(acquisition); offered != offered_.end()) {
      // A process that releases the grant has taken it up, or has its request forgotten.
      SettleOffer(RequestId(offered->second));
    }
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

uint64_t Permits::Weigh(const RequestId& request, const WaitTicket& ticket) {
  return ticket.pool != nullptr ? WaitWeight(*ticket.waiter) : GangTable::WeightOf(*gangs_.Find(request));
}

void Permits::Leave(StepContext&, const RequestId& request, const WaitTicket& ticket) {
  if (ticket.pool != nullptr) return ticket.pool->Leave(ticket.number);
  const Gang gang = gangs_.Take(request);
  for (const Gang::Part& part : gang.parts) part.pool->Leave(gang.number);
}

void Permits::Expire(StepContext& step) {
  core_.devices.placement().SetNow(step.now);
  const bool more_silent = SkipSilent(step);
  ResolveOverdueOffers(step);
  LookAtWaiters(step);
  if (more_silent) LookSoon(step);
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
    // Another request of the session may nest in a permit of the gang's withdrawn grant.
    if (const absl::Status free = CheckNotHeld(gang); !free.ok()) {
      transaction.Refuse(request, free);
    } else {
      for (const Gang::Part& part : gang.parts) part.pool->Attach(transaction.step(), gang.number);
      step.dirty.pools = true;
    }
  }
  transaction.Answer();
  BeginWait(step, request);
}

bool Undo(const UndoStep& undo, const AcquireResult& result) {
  return undo.core.permits
      .ReleaseAcquisition(undo.step, undo.channel.session, result.acquisition, undo.end)
      .ok();
}

// ---- Read-only views of pools, permits and waiters, and the check of permits ---------------------------------

absl::StatusOr<WaitView> Permits::ExplainWait(const Caller& caller, uint64_t waiter) {
  PermitTransaction transaction(core_, nullptr);
  std::optional<WaitView> elsewhere;
  const Gang* const gang = gangs_.FindByNumber(waiter);
  const bool served = gang == nullptr || transaction.DevicesServe(*gang);
  for (const auto& [name, pool] : pools_) {
    std::optional<WaitView> view = pool.Explain(waiter, caller.sees_all() ? nullptr : &caller.tenant, &transaction);
    if (!view.has_value()) continue;
    if (view->cause == WaitCause::kDevice && view->waiter.gang.empty()) {
      view->lacking = core_.devices.placement().Lacking(
          {.constraint = view->waiter.device, .units = view->waiter.units, .shares = &pool.shares()});
    }
    if (!served) view->estimate = absl::InfiniteDuration();
    // For a gang, reports the first of its pools that lacks something.
    if (view->cause != WaitCause::kElsewhere) return *std::move(view);
    if (!elsewhere.has_value()) elsewhere = std::move(view);
  }
  if (elsewhere.has_value()) {
    elsewhere->cause = transaction.CauseOf(*gang);
    if (elsewhere->cause == WaitCause::kDevice) elsewhere->lacking = transaction.LackingOf(*gang);
    return *std::move(elsewhere);
  }
  return Refuse(Reason::kNotFound, "no {kind} {id}; its request may have been granted or cancelled",
                {{"kind", "waiter"}, {"id", waiter}});
}

std::optional<uint64_t> Permits::FindWaiter(const Caller& caller, uint64_t sequence) const {
  const auto pending = core_.requests.pending().find({.channel = caller.credentials.channel, .sequence = sequence});
  if (pending == core_.requests.pending().end()) return std::nullopt;
  const WaitTicket& ticket = pending->second.ticket;
  return ticket.pool == nullptr || ticket.number == 0 ? std::nullopt : std::optional(ticket.number);
}

uint64_t Permits::CountJudged() const {
  uint64_t judged = assessed_;
  for (const auto& [name, pool] : pools_) judged += pool.judged();
  return judged;
}

uint64_t Permits::CountGaugesRead() const {
  uint64_t read = 0;
  for (const auto& [name, pool] : pools_) read += pool.gauges_read();
  return read;
}

absl::StatusOr<PoolView> Permits::GetPool(absl::string_view pool) {
  const PermitPool* const found = FindPool(pool);
  if (found == nullptr) return NoPool(pool);
  return found->View();
}

Page<PoolView> Permits::ListPools(const PageRequest& page) const {
  PageBuilder<PoolView> builder(page);
  // The set of pools is fixed, so a pool's position is its key.
  uint64_t place = 0;
  for (const auto& [name, pool] : pools_) {
    if (++place <= page.after) continue;
    if (builder.Full()) break;
    builder.Add(place, 0, pool.View());
  }
  return builder.Build();
}

bool Permits::MaySee(const Caller& caller, SessionId session) const {
  return caller.sees_all() || core_.sessions.table().Find(session)->tenant == caller.tenant;
}

Page<PermitView> Permits::ListPermits(const Caller& caller, absl::string_view pool, const PageRequest& page) const {
  const auto visible = [&](SessionId session) { return MaySee(caller, session); };
  // Pools are visited by name. Ids rise with the time of the grant, so the first permits of each pool include the first
  // overall.
  const uint64_t most = page.rows == UINT64_MAX ? page.rows : page.rows + 1;
  std::vector<PermitView> found;
  for (const auto& [name, one] : pools_) {
    if (pool.empty() || pool == name) one.AddPermits(PermitId(page.after), most, visible, &found);
  }
  std::sort(found.begin(), found.end(), [](const PermitView& a, const PermitView& b) { return a.id < b.id; });
  PageBuilder<PermitView> builder(page);
  for (PermitView& view : found) {
    if (builder.Full()) break;
    const uint64_t id = view.id.value();
    core_.devices.SetReadings(&view);
    builder.Add(id, 0, std::move(view));
  }
  return builder.Build();
}

std::vector<WaiterView> Permits::ListWaiters(const Caller& caller, absl::string_view pool, uint64_t most) const {
  const auto visible = [&](SessionId session) { return MaySee(caller, session); };
  std::vector<WaiterView> views;
  for (const auto& [name, one] : pools_) {
    if (pool.empty() || pool == name) one.AddWaiters(most, visible, &views);
  }
  return views;
}

PermitCounts Permits::CountPermits(const Caller& caller, absl::string_view pool) const {
  const auto visible = [&](SessionId session) { return MaySee(caller, session); };
  PermitCounts counts;
  for (const auto& [name, one] : pools_) {
    if (!pool.empty() && pool != name) continue;
    counts.pools.push_back(one.CountUse(visible));
    counts.waiting_requests += counts.pools.back().visible.waiters;
  }
  if (!pool.empty()) return counts;
  for (const auto& [request, gang] : gangs_.gangs()) {
    if (visible(gang.requester.session)) counts.waiting_requests -= gang.parts.size() - 1;
  }
  return counts;
}

absl::Status Permits::CheckPermits() const {
  std::map<uint32_t, std::pair<uint64_t, uint64_t>> placed;
  for (const auto& [ordinal, device] : core_.devices.all()) placed[ordinal];
  for (const auto& [name, pool] : pools_) {
    const auto all = [](SessionId) { return true; };
    std::vector<PermitView> permits;
    pool.AddPermits(PermitId(), UINT64_MAX, all, &permits);
    for (const PermitView& permit : permits) {
      if (core_.sessions.table().Find(permit.session) == nullptr) return Broken("an ended session holds a permit");
      if (!permit.device.has_value()) continue;
      auto& [permits_there, declared_there] = placed[permit.device->ordinal];
      ++permits_there;
      declared_there += permit.declared.count();
    }
    std::vector<WaiterView> waiters;
    pool.AddWaiters(UINT64_MAX, all, &waiters);
    for (const WaiterView& waiter : waiters) {
      const Session* const session = core_.sessions.table().Find(waiter.session);
      if (session == nullptr || session->state != SessionState::kActive) {
        return Broken("an ended session has a waiter");
      }
    }
  }
  for (const auto& [ordinal, sums] : placed) {
    if (sums.first != core_.devices.placement().PermitsOn(ordinal) ||
        sums.second != core_.devices.placement().DeclaredOn(ordinal).count()) {
      return Broken(absl::StrCat("device ", ordinal, ": the bytes declared by permits are miscounted"));
    }
  }
  return absl::OkStatus();
}

// ---- Ledger records of pools, permits and their waiters ------------------------------------------------------

void Permits::ListPermitRecords(std::vector<RecordKey>* keys) const {
  for (const auto& [name, pool] : pools_) pool.ListRecords(keys);
  for (const auto& [request, gang] : gangs_.gangs()) keys->push_back(KeyOf(RecordKind::kGang, gang.number));
}

bool Permits::WritePermitRecord(const RecordKey& key, ArchiveWriter& archive) const {
  if (key.kind == static_cast<uint32_t>(RecordKind::kGang)) {
    const Gang* const gang = gangs_.FindByNumber(key.id);
    if (gang == nullptr) return false;
    archive(*gang);
    return true;
  }
  const auto pool = pools_by_number_.find(PoolOf(key));
  return pool != pools_by_number_.end() && pool->second->WriteRecord(key, archive);
}

void Permits::ReadPermitRecord(const RecordKey& key, ArchiveReader& archive) {
  if (key.kind == static_cast<uint32_t>(RecordKind::kGang)) return ReadGang(key.id, archive);
  if (key.kind == static_cast<uint32_t>(RecordKind::kPool) && !pools_by_number_.contains(key.id)) {
    // A pool that is no longer configured stays while it has permits or waiters.
    const PoolConfig config = PermitPool::ReadConfig(archive);
    if (config.cap == 0 || PermitPool::NumberOf(config.name) != key.id) return archive.Fail();
    AddPool(config);
  }
  const auto pool = pools_by_number_.find(PoolOf(key));
  if (pool == pools_by_number_.end()) return archive.Fail();
  pool->second->ReadRecord(key, archive);
  if (archive.failed() || key.kind != static_cast<uint32_t>(RecordKind::kWaiter)) return;
  const Waiter& waiter = *pool->second->FindWaiter(key.id);
  const auto pending = core_.requests.pending().find(waiter.request);
  if (pending == core_.requests.pending().end()) return archive.Fail();
  if (pending->second.place != nullptr) return archive.Fail();
  // The gang's own record follows.
  if (!waiter.gang.empty()) return;
  core_.requests.SetPlace(waiter.request, this, {.pool = pool->second, .waiter = &waiter, .number = waiter.number});
  core_.requests.MarkWaiting(waiter.request);
}

void Permits::ReadGang(uint64_t number, ArchiveReader& archive) {
  Gang gang;
  archive(gang);
  const auto pending = core_.requests.pending().find(gang.request);
  const bool whole = gang.number == number && !gang.parts.empty() && gang.permits.size() == gang.what.members.size();
  if (archive.failed() || !whole || pending == core_.requests.pending().end()) return archive.Fail();
  for (Gang::Part& part : gang.parts) {
    const auto known = [&](size_t member) { return member < gang.permits.size(); };
    if (part.members.empty() || !std::all_of(part.members.begin(), part.members.end(), known)) return archive.Fail();
    part.pool = FindPool(gang.permits[part.members.front()].pool);
    const Waiter* const waiter = part.pool == nullptr ? nullptr : part.pool->FindWaiter(number);
    if (waiter == nullptr || waiter->request != gang.request) return archive.Fail();
  }
  for (const ByteRequest& ask : gang.byte_requests) {
    if (!core_.devices.Has(ask.device)) return archive.Fail();
  }
  const RequestId request = gang.request;
  gangs_.Add(std::move(gang));
  core_.requests.SetPlace(request, this);
  core_.requests.MarkWaiting(request);
}

void Permits::FinishRestoringPermits() {
  for (auto it = pools_.begin(); it != pools_.end();) {
    PermitPool& pool = it->second;
    pool.FinishRestoring();
    const bool configured = std::any_of(core_.config.pools.begin(), core_.config.pools.end(),
                                        [&](const PoolConfig& config) { return config.name == pool.config().name; });
    if (configured || !pool.IsIdle()) {
      ++it;
      continue;
    }
    std::vector<RecordKey> gone;
    pool.ListRecords(&gone);
    for (const RecordKey& key : gone) core_.journal.Touch(key);
    pools_by_number_.erase(pool.number());
    it = pools_.erase(it);
  }
}

void Permits::ResumePermits(StepContext& step) {
  // The configuration may have changed, and with it which requests can be granted at all.
  PermitTransaction transaction(core_, &step);
  transaction.Reconsider();
  for (auto& [name, pool] : pools_) pool.Reconsider(transaction.step());
  transaction.Answer();
  for (const RequestId& request : gangs_.reserving()) AddGangBytes(*gangs_.Find(request));
  for (auto& [ordinal, device] : core_.devices.all()) core_.byte_queue.changes()->Mark(&device.account);
  RestoreOffers(step);
}

}  // namespace berth::core
