// Sessions and their processes: how they come, and what their end brings back.

#include "common/error.h"
#include "common/status_macros.h"
#include "daemon/core/core_impl.h"

namespace berth::core {

absl::StatusOr<SessionId> Core::OpenSession(absl::Time now, const Secret& secret, const Tenant& tenant,
                                            absl::string_view label, const ProcessInfo& opener, bool of_operator) {
  if (impl_->shutting_down_) return Refuse(Reason::kShuttingDown, "the daemon is stopping");
  const uint64_t limit = impl_->config_.limits.sessions;
  if (!of_operator && impl_->sessions_.size() >= limit) {
    return RefuseWithRetry(Reason::kLimit, absl::Seconds(1), "{what}: {current}, limit {limit}",
                           {{"what", "sessions"}, {"current", impl_->sessions_.size()}, {"limit", limit}});
  }
  const auto known = impl_->tenants_.find(tenant);
  const uint64_t own = known == impl_->tenants_.end() ? 0 : known->second.sessions;
  const std::optional<uint64_t> quota = impl_->tenant_use_.QuotaOf(tenant).sessions;
  if (!of_operator && quota.has_value() && own >= *quota) {
    return RefuseWithRetry(Reason::kLimit, absl::Seconds(1), "sessions of the tenant: {current}, limit {limit}",
                           {{"what", "sessions_of_tenant"}, {"current", own}, {"limit", *quota}});
  }
  const SessionId id = impl_->NewId<SessionId>();
  impl_->sessions_.Open(Session{.id = id,
                                .secret = secret,
                                .tenant = tenant,
                                .label = std::string(label),
                                .opened_at = now,
                                .opener = opener});
  ++impl_->tenants_[tenant].sessions;
  return id;
}

absl::StatusOr<ChannelId> Core::JoinSession(absl::Time, SessionId session, const Secret& secret,
                                            const Tenant& tenant, const ProcessInfo& process) {
  if (impl_->shutting_down_) return Refuse(Reason::kShuttingDown, "the daemon is stopping");
  BERTH_ASSIGN_OR_RETURN(const Session* const found, impl_->sessions_.Authenticate(session, secret, tenant));
  if (found->state != SessionState::kActive) {
    return Refuse(Reason::kSessionEnded, "session {session} has ended", {{"session", session.value()}});
  }
  const Limits& limits = impl_->config_.limits;
  if (found->channels.size() >= limits.channels_per_session) {
    return Refuse(Reason::kLimit, "{what}: {current}, limit {limit}",
                  {{"what", "channels_per_session"},
                   {"current", found->channels.size()},
                   {"limit", limits.channels_per_session}});
  }
  const ChannelId id = impl_->NewId<ChannelId>();
  impl_->sessions_.Join(session, id, process, limits.answers_per_channel);
  impl_->mailboxes_.Open(id, tenant);
  return id;
}

void Core::LifelineHungUp(absl::Time now, SessionId session, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  if (const Session* const found = impl_->sessions_.Find(session)) impl_->BeginEnd(step, *found);
}

void Core::ChannelHungUp(absl::Time now, ChannelId channel, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const Channel* const found = impl_->sessions_.FindChannel(channel);
  if (found == nullptr || found->hung_up) return;
  impl_->sessions_.ChangeChannel(channel).hung_up = true;
  impl_->Dismiss(step, impl_->PendingOf(*found),
                 Refuse(Reason::kNotJoined, "session {session}: channel {channel} hung up",
                        {{"session", found->session.value()}, {"channel", channel.value()}}));
  std::vector<Deliver> sends;
  const std::vector<ImportId> unsent = impl_->mailboxes_.Close(channel, &sends);
  impl_->SendAll(step, std::move(sends));
  for (const ImportId import : unsent) {
    impl_->EndImport(step, *impl_->blocks_.FindByImport(import), import, LogCause::kNeverSent);
  }
  impl_->EndKeepingBy(step, channel);
  impl_->modules_.EndCompilesOf(step, channel);
  impl_->Emit(step, CloseChannel{.channel = channel});
  impl_->FinishIfOver(step, *impl_->sessions_.Find(found->session));
}

void Core::ReplaceChannel(absl::Time now, ChannelId earlier, ChannelId channel, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const Channel* const from = impl_->sessions_.FindChannel(earlier);
  const Channel* const to = impl_->sessions_.FindChannel(channel);
  if (from == nullptr || to == nullptr || from == to || !from->hung_up || from->session != to->session)
    return;
  // Others may wait for what it has begun: until it has come to its end, or the process has.
  if (!impl_->fences_.Quiet(earlier, impl_->read_words_)) return;
  impl_->EndFencesOf(step, earlier);
  impl_->blocks_.MoveImports(earlier, channel);
  impl_->Emit(step, DropChannel{.channel = earlier});
  impl_->sessions_.EraseChannel(earlier);
}

void Core::ProcessGone(absl::Time now, ChannelId channel, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  const Channel* const found = impl_->sessions_.FindChannel(channel);
  if (found == nullptr) return;
  const Session& session = *impl_->sessions_.Find(found->session);
  impl_->Dismiss(
      step, impl_->PendingOf(*found),
      Refuse(Reason::kCancelled, "the process of channel {channel} is gone", {{"channel", channel.value()}}));
  std::vector<Deliver> sends;
  impl_->mailboxes_.Close(channel, &sends);
  impl_->SendAll(step, std::move(sends));
  impl_->EndFencesOf(step, channel);
  impl_->modules_.EndCompilesOf(step, channel);
  for (const ImportId import : impl_->blocks_.ImportsOf(channel)) {
    impl_->EndImport(step, *impl_->blocks_.FindByImport(import), import, LogCause::kProcessGone);
  }
  impl_->Emit(step, DropChannel{.channel = channel});
  impl_->sessions_.EraseChannel(channel);
  impl_->FinishIfOver(step, session);
}

void Core::DeliveryAcknowledged(absl::Time now, ChannelId channel, uint64_t number, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  std::vector<Deliver> sends;
  impl_->mailboxes_.Acknowledge(channel, number, &sends);
  impl_->SendAll(step, std::move(sends));
}

void Core::ImportLetGo(absl::Time now, ChannelId channel, ImportId import, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  Block* const block = impl_->blocks_.FindByImport(import);
  if (block == nullptr || block->imports.at(import).channel != channel) return;
  impl_->EndImport(step, *block, import, LogCause::kLetGo);
}

absl::StatusOr<SessionView> Core::EndSession(absl::Time now, const Caller& caller, SessionId session,
                                             Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  BERTH_ASSIGN_OR_RETURN(const Session* const own, impl_->Authenticate(caller));
  const SessionId id = session ? session : own->id;
  const Session* const found = impl_->sessions_.Find(id);
  if (found == nullptr || (found != own && !caller.admin)) {
    return Refuse(Reason::kNotFound, "no {kind} {id}", {{"kind", "session"}, {"id", id.value()}});
  }
  SessionView view = impl_->ViewSession(*found);
  view.state = SessionState::kEnding;
  impl_->BeginEnd(step, *found);
  // Waiters have left, and it may be over.
  if (const Session* const ending = impl_->sessions_.Find(id)) view = impl_->ViewSession(*ending);
  return view;
}

void Core::Impl::BeginEnd(const Step& step, const Session& session) {
  if (session.state == SessionState::kEnding) return;
  sessions_.Change(session.id).state = SessionState::kEnding;
  std::vector<RequestId> requests;
  for (const ChannelId channel : session.channels) {
    for (const RequestId& request : PendingOf(*sessions_.FindChannel(channel))) requests.push_back(request);
  }
  Dismiss(step, requests,
          Refuse(Reason::kSessionEnded, "session {session} has ended", {{"session", session.id.value()}}));
  for (const ChannelId channel : session.channels) {
    EndKeepingBy(step, channel);
    modules_.EndCompilesOf(step, channel);
  }
  for (Reservation* const reservation : reservations_.OfSession(session.id)) {
    DropReservation(step, *reservation, LogCause::kSessionEnd);
  }
  std::vector<Deliver> sends;
  for (const ChannelId channel : session.channels) {
    mailboxes_.Post(Deliver{.channel = channel, .delivery = {.what = attach::DeliveryKind::kEnded}}, &sends);
  }
  SendAll(step, std::move(sends));
  FinishIfOver(step, session);
}

bool Core::Impl::HoldsNothing(const Session& session) const {
  if (session.state != SessionState::kEnding) return false;
  for (const ChannelId channel : session.channels) {
    if (!sessions_.FindChannel(channel)->hung_up || blocks_.CountImportsOf(channel) != 0) return false;
  }
  if (session.channels.empty()) return true;
  for (const auto& [name, pool] : pools_) {
    if (pool.UnitsOf(session.id) != 0) return false;
  }
  return true;
}

bool Core::Impl::IsOver(const Session& session) const {
  if (!HoldsNothing(session)) return false;
  for (const ChannelId channel : session.channels) {
    if (!fences_.Quiet(channel, read_words_)) return false;
  }
  return true;
}

void Core::Impl::LookAtLater(const Step& step, SessionId session) {
  if (leaving_.insert(session).second) PollSoon(step);
}

void Core::Impl::FinishIfOver(const Step& step, const Session& session) {
  if (!IsOver(session)) {
    if (HoldsNothing(session)) LookAtLater(step, session.id);
    return;
  }
  leaving_.erase(session.id);
  while (!session.channels.empty()) {
    const ChannelId channel = *session.channels.begin();
    EndFencesOf(step, channel);
    Emit(step, DropChannel{.channel = channel});
    sessions_.EraseChannel(channel);
  }
  for (const Plan* const plan : plans_.OfSession(session.id)) {
    leases_.NoteEnd(step.now, LeaseOf(*plan), LeaseEnd::kSessionEnd);
    plans_.Erase(*plan);
  }
  PermitRun run(this, &step);
  for (auto& [name, pool] : pools_) pool.ReturnAll(run.step(), session.id);
  run.Answer();
  for (Block* const block : blocks_.OwnedBy(session.id)) {
    if (block->phase == BlockPhase::kLive) FreeBlock(step, *block, LogCause::kSessionEnd);
    // What is on its way back stays with the tenant.
    if (block->charged_session) ChargeTo(*block, SessionId(), block->charged_tenants);
  }
  blocks_.EndGrantsTo(session.id, session.tenant);
  Emit(step, DropSession{.session = session.id});
  const Tenant tenant = session.tenant;
  Delist(session.budgets);
  sessions_.Erase(session.id);
  --tenants_.at(tenant).sessions;
  EraseIfIdle(tenant);
}

}  // namespace berth::core
