// Permits.

#include "common/error.h"
#include "common/status_macros.h"
#include "daemon/core/core_impl.h"
#include "daemon/core/fingerprint.h"
#include "daemon/core/pool_change.h"

namespace berth::core {
namespace {

absl::Status NoPool(absl::string_view name) {
  return Refuse(Reason::kNotFound, "no {kind} {id}", {{"kind", "permit pool"}, {"id", name}});
}

}  // namespace

void Core::Acquire(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                   const AcquireRequest& request, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto admitted = impl_->Admit(step, call, caller, tag, FingerprintOf(request), request.deadline);
  if (!admitted.has_value()) return;
  PermitPool* const pool = impl_->FindPool(request.pool);
  if (pool == nullptr) return impl_->Answer(step, admitted->request, NoPool(request.pool));
  const Asker asker{.session = admitted->session.id,
                    .tenant = admitted->session.tenant,
                    .process = admitted->channel.process};
  PermitRun run(impl_.get(), &step);
  const Waiter* const waiter = pool->Acquire(run.step(), admitted->request, asker, request);
  impl_->pending_.at(admitted->request).place = InPool(pool, waiter);
  run.Answer();
  impl_->NoteWaits(admitted->request);
}

void Core::Release(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                   AcquisitionId acquisition, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto admitted = impl_->Admit(step, call, caller, tag, FingerprintOf(acquisition));
  if (!admitted.has_value()) return;
  const absl::StatusOr<ReleaseResult> result =
      impl_->ReleaseAcquisition(step, admitted->session.id, acquisition);
  if (result.ok()) {
    impl_->Answer(step, admitted->request, Response(*result));
  } else {
    impl_->Answer(step, admitted->request, result.status());
  }
}

void Core::ReleaseIfIdle(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                         const ReleaseIfIdleRequest& request, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto admitted = impl_->Admit(step, call, caller, tag, FingerprintOf(request));
  if (!admitted.has_value()) return;
  const ReleaseResult result =
      PermitRun(impl_.get(), &step).ReleaseIfIdle(admitted->session.id, request.acquisition);
  impl_->Answer(step, admitted->request, Response(result));
}

absl::StatusOr<ReleaseResult> Core::GiveBack(absl::Time now, ChannelId channel, AcquisitionId acquisition,
                                             bool if_idle, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const Channel* const found = impl_->sessions_.FindChannel(channel);
  const SessionId session = found == nullptr ? SessionId() : found->session;
  if (if_idle) return PermitRun(impl_.get(), &step).ReleaseIfIdle(session, acquisition);
  return impl_->ReleaseAcquisition(step, session, acquisition);
}

void Core::KeepPermits(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                       const KeepPermitsRequest& request, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const auto admitted = impl_->Admit(step, call, caller, tag, FingerprintOf(request));
  if (!admitted.has_value()) return;
  if (const absl::Status room = impl_->MayDeliver(admitted->channel); !room.ok()) {
    return impl_->Answer(step, admitted->request, room);
  }
  impl_->SendOwnPage(step, admitted->request);
  impl_->Answer(step, admitted->request, Response(KeepPermitsResult()));
}

void Core::Impl::EndKeepingBy(const Step& step, ChannelId channel) {
  PermitRun run(this, &step);
  for (auto& [name, pool] : pools_) pool.EndKeepingBy(run.step(), channel);
  run.Answer();
}

absl::StatusOr<PoolView> Core::SetPool(absl::Time now, absl::string_view pool, const PoolChange& change,
                                       Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  PermitPool* const found = impl_->FindPool(pool);
  if (found == nullptr) return NoPool(pool);
  BERTH_RETURN_IF_ERROR(CheckChange(change));
  PermitRun run(impl_.get(), &step);
  found->Change(run.step(), change);
  run.Reconsider();
  run.Answer();
  // Of those that are out some may be past the new limits already.
  impl_->Expire(step);
  return found->View();
}

absl::StatusOr<PermitView> Core::RevokePermit(absl::Time now, PermitId permit, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  for (auto& [name, pool] : impl_->pools_) {
    PermitRun run(impl_.get(), &step);
    std::optional<PermitView> revoked = pool.Revoke(run.step(), permit, LeaseEnd::kRevoked);
    if (!revoked.has_value()) continue;
    run.Answer();
    impl_->TellHolders(step, *revoked, attach::DeliveryKind::kRevoked);
    impl_->FinishIfOver(step, *impl_->sessions_.Find(revoked->session));
    return *std::move(revoked);
  }
  return Refuse(Reason::kNotFound, "no {kind} {id}", {{"kind", "permit"}, {"id", permit.value()}});
}

void Core::SetQuotas(absl::Time now, const QuotaTable& quotas, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  impl_->tenant_use_.SetQuotas(quotas);
  PermitRun run(impl_.get(), &step);
  run.Reconsider();
  for (auto& [name, pool] : impl_->pools_) pool.Reconsider(run.step());
  run.Answer();
}

absl::StatusOr<WaitView> Core::ExplainWait(const Caller& caller, uint64_t waiter) const {
  PermitRun run(impl_.get(), nullptr);
  std::optional<WaitView> elsewhere;
  for (const auto& [name, pool] : impl_->pools_) {
    std::optional<WaitView> view = pool.Explain(waiter, caller.sees_all() ? nullptr : &caller.tenant, &run);
    if (!view.has_value()) continue;
    if (view->cause == WaitCause::kDevice && view->waiter.gang.empty()) {
      view->lacking = impl_->placement_.Lacking(
          {.wish = view->waiter.device, .units = view->waiter.units, .shares = &pool.shares()});
    }
    // Of a gang's pools the first that it lacks something of.
    if (view->cause != WaitCause::kElsewhere) return *std::move(view);
    if (!elsewhere.has_value()) elsewhere = std::move(view);
  }
  if (elsewhere.has_value()) {
    for (const auto& [request, gang] : impl_->gangs_.gangs()) {
      if (gang.number == waiter) elsewhere->cause = run.CauseOf(gang);
    }
    return *std::move(elsewhere);
  }
  return Refuse(Reason::kNotFound, "no {kind} {id}; it may have been granted or have left",
                {{"kind", "waiter"}, {"id", waiter}});
}

absl::StatusOr<PoolView> Core::GetPool(absl::string_view pool) const {
  const PermitPool* const found = impl_->FindPool(pool);
  if (found == nullptr) return NoPool(pool);
  return found->View();
}

void Core::Impl::TellHolders(const Step& step, const PermitView& permit, attach::DeliveryKind what) {
  std::vector<Deliver> sends;
  for (const ChannelId channel : sessions_.Find(permit.session)->channels) {
    mailboxes_.Post({.channel = channel, .delivery = {.what = what, .permit = permit.id.value()}}, &sends);
  }
  SendAll(step, std::move(sends));
  if (what == attach::DeliveryKind::kRevoked) PlanRun(this, &step).NoteRevoked(permit);
}

bool Core::Impl::IsPlaced(const Device& device) const {
  const Placement::State& known = placement_.StateOf(device.config.ordinal);
  return known.ledger == device.account.charged() && known.in_service == device.takes_leases() &&
         known.dropped == (device.main.state == DeviceState::kDropped) &&
         known.generation == device.main.generation && known.draining == device.drain_reason;
}

void Core::Impl::UpdatePlacement() {
  // Whatever changes a device or its account notes such a row, or one of the block's that it is about.
  if (std::exchange(placed_touches_, journal_.memory_touches()) == journal_.memory_touches()) return;
  for (const auto& [ordinal, device] : devices_) {
    if (IsPlaced(device)) continue;
    placement_.Update(ordinal, {.generation = device.main.generation,
                                .in_service = device.takes_leases(),
                                .dropped = device.main.state == DeviceState::kDropped,
                                .draining = device.drain_reason,
                                .ledger = device.account.charged()});
  }
}

void Core::Impl::ServePlaced(const Step& step) {
  UpdatePlacement();
  const Placement::Changes changes = placement_.TakeChanges();
  bool again = changes.verdicts || changes.never;
  PermitRun run(this, &step);
  if (changes.never) {
    run.Reconsider();
    for (auto& [name, pool] : pools_) pool.Reconsider(run.step());
  }
  // Who goes with its gang may leave units to those behind it in pools that have been served; and who was the last of a
  // tenant at its quota to wait leaves what is kept to those who keep it, once it is answered.
  again = std::exchange(serve_pools_, false) || again;
  while (tenant_use_.TakeChanged() || again) {
    for (auto& [name, pool] : pools_) pool.Serve(run.step());
    run.Answer();
    again = std::exchange(serve_pools_, false);
  }
  run.Answer();
}

PermitPool* Core::Impl::FindPool(absl::string_view name) {
  const auto found = pools_.find(std::string(name));
  return found == pools_.end() ? nullptr : &found->second;
}

absl::StatusOr<ReleaseResult> Core::Impl::ReleaseAcquisition(const Step& step, SessionId session,
                                                             AcquisitionId acquisition, LeaseEnd how) {
  for (auto& [name, pool] : pools_) {
    if (!pool.Holds(session, acquisition)) continue;
    PermitRun run(this, &step);
    const ReleaseResult result = pool.Release(run.step(), acquisition, how);
    run.Answer();
    return result;
  }
  return Refuse(Reason::kNotFound, "no {kind} {id} in this session",
                {{"kind", "acquisition"}, {"id", acquisition.value()}});
}

}  // namespace berth::core
