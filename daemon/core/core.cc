// Requests: how they come in, wait, leave and are answered.

#include "daemon/core/core.h"

#include <algorithm>

#include "common/error.h"
#include "common/status_macros.h"
#include "daemon/core/core_impl.h"

namespace berth::core {
namespace {

// Begins to fetch what the end of the request will touch. Among thousands nothing of one that waits is in a near cache.
void Prefetch(const Pending& pending) {
  __builtin_prefetch(pending.memory);
  __builtin_prefetch(&pending.session->tenant);
  if (const auto* const in = std::get_if<InPool>(&pending.place)) in->pool->Prefetch(in->waiter, in->number);
}

}  // namespace

Core::Impl::Impl(Config config, DrawId draw_id, ReadWords read, FindPermitWord find)
    : config_(std::move(config)),
      draw_id_(std::move(draw_id)),
      read_words_(std::move(read)),
      sessions_(&journal_),
      tenant_use_(config_.quotas),
      permit_words_(std::move(find)),
      gangs_(&journal_),
      room_(&journal_, config_.limits.passes_before_keep, config_.limits.longest_keep),
      plans_(&journal_),
      mailboxes_(config_.limits.unacknowledged_fds_per_channel, config_.limits.unacknowledged_fds_per_tenant,
                 &journal_),
      fences_(&journal_, config_.limits.fences),
      modules_(this, config_.limits.modules, config_.epoch) {
  journal_.Touch(RowKind::kCounters);
  for (const PoolConfig& pool : config_.pools) AddPool(pool);
  for (const DeviceConfig& device : config_.devices) {
    BERTH_INVARIANT(device.granularity.count() > 0 && device.ordinal < kMaxDeviceOrdinals);
    devices_.try_emplace(device.ordinal, device, config_.warm_sizes, config_.calls)
        .first->second.account.Enlist(device.ordinal + 1, &journal_);
    budgets_.emplace(device.ordinal + 1, BudgetPlace{.of = {}, .device = device.ordinal});
    journal_.Touch(RowKind::kDevice, device.ordinal);
    placement_.Add(device.ordinal, {.uuid = device.uuid,
                                    .kind = device.kind,
                                    .total = device.total,
                                    .reserve = device.permit_reserve,
                                    .context = device.context,
                                    .others = device.others,
                                    .facts = device.facts});
  }
  journal_.Touch(RowKind::kMemoryCounters);
  UpdateIslands();
  UpdatePlacement();
}

Core::Core(Config config, DrawId draw_id, ReadWords read, FindPermitWord find)
    : impl_(std::make_unique<Impl>(std::move(config), std::move(draw_id), std::move(read), std::move(find))) {
}
Core::~Core() = default;

Step::~Step() {
  // A gang that is granted last of all may have reserved what somebody waits for in vain from then on.
  do {
    core_->ServeRoom(*this);
    core_->ServeGangRoom(*this);
    core_->ServePlaced(*this);
  } while (core_->room_changed_);
  PlanRun(core_, this).Look();
  core_->leases_.TakeAll([this](LeaseRecord&& lease) { core_->Emit(*this, std::move(lease)); });
}

Step Core::Impl::Begin(absl::Time now, Effects* effects) {
  {
    const Step step(this, now, effects);
    permit_words_.BeginStep();
    Expire(step);
    DropAbsent(step);
    RefillDue(step);
  }
  return Step(this, now, effects);
}

void Core::Impl::Expire(const Step& step) {
  placement_.SetNow(step.now);
  PermitRun run(this, &step);
  std::vector<PermitView> revoked, overdue;
  run.Expire();
  for (auto& [name, pool] : pools_) pool.Expire(run.step(), &revoked, &overdue);
  run.Answer();
  for (const PermitView& permit : overdue) TellHolders(step, permit, attach::DeliveryKind::kOverdue);
  for (const PermitView& permit : revoked) TellHolders(step, permit, attach::DeliveryKind::kRevoked);
  for (const PermitView& permit : revoked) {
    // One that has ended may have waited for nothing else.
    if (const Session* const session = sessions_.Find(permit.session)) FinishIfOver(step, *session);
  }
  ExpireFences(step);
  ExpireRoom(step);
  modules_.Expire(step);
}

void Core::Impl::Reply(const Step& step, CallId call, absl::StatusOr<Response> response) {
  calls_.erase(call);
  Emit(step, core::Reply{.call = call, .response = std::move(response)});
}

absl::StatusOr<const Session*> Core::Impl::Authenticate(const Caller& caller) const {
  if (caller.observer) {
    return Refuse(Reason::kObserverOnlyLooks,
                  "an observer may look at all and change nothing: ask on {socket}, or as an operator on {admin}",
                  {{"socket", "berthd.sock"}, {"admin", "admin.sock"}});
  }
  return sessions_.Authenticate(caller.credentials.session, caller.credentials.secret, caller.tenant);
}

absl::StatusOr<const Channel*> Core::Impl::AdmitCaller(const Caller& caller) {
  if (shutting_down_) return Refuse(Reason::kShuttingDown, "the daemon is stopping");
  BERTH_ASSIGN_OR_RETURN(const Session* const session, Authenticate(caller));
  if (session->state != SessionState::kActive) {
    return Refuse(Reason::kSessionEnded, "session {session} has ended", {{"session", session->id.value()}});
  }
  const Channel* const channel = sessions_.FindChannel(caller.credentials.channel);
  if (channel == nullptr || channel->session != session->id || channel->hung_up) {
    return Refuse(Reason::kNotJoined, "session {session}: channel {channel} is not joined, or hung up",
                  {{"session", session->id.value()}, {"channel", caller.credentials.channel.value()}});
  }
  return channel;
}

std::optional<Admitted> Core::Impl::Admit(const Step& step, CallId call, const Caller& caller,
                                          const RequestTag& tag, uint64_t fingerprint, absl::Time deadline) {
  const absl::StatusOr<const Channel*> channel = AdmitCaller(caller);
  if (!channel.ok()) {
    Reply(step, call, channel.status());
    return std::nullopt;
  }
  RequestMemory& memory = sessions_.RequestsOf((*channel)->id);
  const absl::StatusOr<RequestMemory::Admission> admission = memory.Admit(tag, fingerprint);
  if (!admission.ok()) {
    Reply(step, call, admission.status());
    return std::nullopt;
  }
  if (admission->entry->state == RequestMemory::State::kAnswered) {
    Reply(step, call, admission->entry->answer);
    return std::nullopt;
  }
  const RequestId request{(*channel)->id, tag.sequence};
  PendingRequest& known = *pending_.try_emplace(request).first;
  const bool fresh_call = calls_.emplace(call, &known).second;
  BERTH_INVARIANT(fresh_call);
  Pending& pending = known.second;
  const CallId replaced = std::exchange(pending.call, call);
  if (admission->fresh) {
    pending.memory = &memory;
    pending.session = sessions_.Find((*channel)->session);
    pending.since = step.now;
    return Admitted{request, *pending.session, **channel};
  }
  if (replaced) {
    Reply(step, replaced,
          Refuse(Reason::kCancelled, "request {sequence} of channel {channel} is waited for by a later call",
                 {{"channel", request.channel.value()}, {"sequence", request.sequence}}));
  }
  if (const auto* const in = std::get_if<InPool>(&pending.place)) {
    in->pool->SetDeadline(in->number, deadline);
    Expire(step);
  } else if (GangTable** const gangs = std::get_if<GangTable*>(&pending.place)) {
    (*gangs)->SetDeadline(request, deadline);
    Expire(step);
  } else if (RoomQueue** const room = std::get_if<RoomQueue*>(&pending.place)) {
    (*room)->SetDeadline(request, deadline);
    Expire(step);
  } else if (std::holds_alternative<ModuleId>(pending.place)) {
    modules_.table().SetDeadline(request, deadline);
    Expire(step);
  }
  if (absent_.erase(request) > 0) ComeBack(step, request);
  return std::nullopt;
}

void Core::Impl::Answer(const Step& step, const RequestId& request, absl::StatusOr<Response> response) {
  auto pending = pending_.find(request);
  BERTH_INVARIANT(pending != pending_.end());
  LogAnswer(step, pending->second, response);
  if (const std::unique_ptr<PlanDraft> draft = std::move(pending->second.plan); draft != nullptr && response.ok()) {
    // What it gives back may be for others.
    response = PlanRun(this, &step).Finish(request, *draft, *response);
    pending = pending_.find(request);
  }
  const CallId call = pending->second.call;
  RequestMemory& memory = *pending->second.memory;
  NoteWaitsNoMore(pending->second);
  pending_.erase(pending);
  const bool unheard = absent_.erase(request) > 0 && !call;
  // A refusal that nobody waited for is none: who comes back is judged anew.
  if (absl::IsUnavailable(response.status()) || (unheard && !response.ok())) {
    memory.Erase(request.sequence);
  } else {
    memory.Answer(request.sequence, response);
  }
  if (call) Reply(step, call, std::move(response));
}

void Core::Impl::Leave(const Step& step, const std::vector<RequestId>& requests, const absl::Status& status) {
  bool room = false;
  PrepareOutcomes prepares;
  for (const RequestId& request : requests) {
    const auto found = pending_.find(request);
    BERTH_INVARIANT(found != pending_.end());
    Pending pending = std::move(found->second);
    NoteWaitsNoMore(pending);
    pending_.erase(found);
    absent_.erase(request);
    LogAnswer(step, pending, status);
    if (const auto* const in = std::get_if<InPool>(&pending.place)) {
      in->pool->Leave(in->number);
    } else if (std::holds_alternative<GangTable*>(pending.place)) {
      const Gang gang = gangs_.Take(request);
      for (const Gang::Part& part : gang.parts) part.pool->Leave(gang.number);
    } else if (std::holds_alternative<RoomQueue*>(pending.place)) {
      GiveUp(room_.Take(request));
      room = true;
    } else if (std::holds_alternative<FenceTable*>(pending.place)) {
      fences_.Leave(StepOf(step, &prepares), request);
    } else if (const auto* const import = std::get_if<WaitingImport>(&pending.place)) {
      waiting_imports_.erase({import->deadline, request});
    } else if (std::holds_alternative<ModuleId>(pending.place)) {
      modules_.Leave(request);
    } else {
      Abandon(step, *blocks_.Find(std::get<BlockId>(pending.place)));
      room = true;
    }
    if (pending.call) Reply(step, pending.call, status);
  }
  AnswerPrepares(step, std::move(prepares));
  PermitRun run(this, &step);
  for (auto& [name, pool] : pools_) pool.Serve(run.step());
  run.Answer();
  if (room) NoteRoom();
}

void Core::Impl::Dismiss(const Step& step, const std::vector<RequestId>& requests,
                         const absl::Status& status) {
  // First of all, so that nothing finds them on the way.
  for (const RequestId& request : requests) pending_.at(request).memory->Erase(request.sequence);
  Leave(step, requests, status);
}

void Core::Impl::NoteWaits(const RequestId& request) {
  const auto found = pending_.find(request);
  if (found == pending_.end() || found->second.counted) return;
  Pending& pending = found->second;
  pending.for_units =
      std::holds_alternative<InPool>(pending.place) || std::holds_alternative<GangTable*>(pending.place);
  pending.counted = true;
  tenant_use_.BeginWait(pending.session->tenant, pending.for_units);
}

void Core::Impl::NoteWaitsNoMore(const Pending& pending) {
  if (pending.counted) tenant_use_.EndWait(pending.session->tenant, pending.for_units);
}

std::vector<RequestId> Core::Impl::PendingOf(const Channel& channel) const {
  std::vector<RequestId> requests;
  for (const uint64_t sequence : channel.requests.Pending()) requests.push_back({channel.id, sequence});
  return requests;
}

void Core::CancelCall(absl::Time now, CallId call, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  if (impl_->reapings_.erase(call) > 0) {
    return impl_->Reply(step, call, Refuse(Reason::kCancelled, "the call was cancelled"));
  }
  const auto found = impl_->calls_.find(call);
  if (found == impl_->calls_.end()) return;
  auto& [request, pending] = *found->second;
  // All of it comes while the refusal is made.
  impl_->pending_.prefetch(request);
  Prefetch(pending);
  const absl::Status cancelled =
      Refuse(Reason::kCancelled, "request {sequence} of channel {channel}: the call was cancelled",
             {{"channel", request.channel.value()}, {"sequence", request.sequence}});
  const bool stores = std::holds_alternative<ModuleId>(pending.place) && impl_->modules_.Stores(request);
  if (std::holds_alternative<BlockId>(pending.place) || stores) {
    pending.call = CallId();
    impl_->Reply(step, call, cancelled);
  } else {
    impl_->Dismiss(step, {RequestId(request)}, cancelled);
  }
}

absl::Time Core::next_deadline() const {
  absl::Time next = std::min({impl_->next_fence_deadline(), impl_->room_.next_deadline(),
                              impl_->reservations_.next_deadline(), impl_->gangs_.next_deadline(),
                              impl_->modules_.table().next_deadline(), impl_->absent_until_});
  for (const auto& [name, pool] : impl_->pools_) next = std::min(next, pool.next_deadline());
  for (const auto& [ordinal, device] : impl_->devices_) {
    next = std::min({next, device.refill_at, device.main.calls.deadline(), device.context.calls.deadline(),
                     device.context.idle_at, device.survey_due});
  }
  return next;
}

void Core::Tick(absl::Time now, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  impl_->EndHungWorkers(step);
  impl_->EndHungMonitor(step);
  impl_->EndIdleContexts(step);
}

void Core::ShutDown(absl::Time now, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  impl_->shutting_down_ = true;
  std::vector<RequestId> requests;
  impl_->sessions_.ForEachChannel([&](const Channel& channel) {
    for (const RequestId& request : impl_->PendingOf(channel)) requests.push_back(request);
  });
  const absl::Status stopping = Refuse(Reason::kShuttingDown, "the daemon is stopping");
  impl_->Dismiss(step, requests, stopping);
  for (const auto& [call, reaping] : std::exchange(impl_->reapings_, {})) impl_->Reply(step, call, stopping);
}

}  // namespace berth::core
