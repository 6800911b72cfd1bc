#include "daemon/core/sessions/sessions.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "daemon/core/managers.h"
#include "daemon/core/types/invariant.h"
#include "daemon/core/types/record_kind.h"

namespace berth::core {

Sessions::Sessions(Managers& core)
    : core_(core),
      sessions_(&core.journal, core.config.limits.answers, core.config.limits.answer_bytes.count(),
                core.config.limits.operator_answer_bytes.count()),
      session_places_("sessions", core.config.limits.sessions, SharedCount::kUnlimited),
      tenant_use_(core.config.quotas,
                  SharedCount("waiting_bytes", core.config.limits.waiting_bytes.count(),
                              core.config.limits.operator_waiting_bytes.count(),
                              "bytes of waiting requests (end some of them, or name fewer devices)")),
      mailboxes_(core.config.limits.unacknowledged_fds_per_channel, core.config.limits.unacknowledged_fds_per_tenant,
                 &core.journal) {}

absl::StatusOr<SessionId> Sessions::OpenSession(absl::Time now, const Secret& secret, const Tenant& tenant,
                                                absl::string_view label, const ProcessInfo& opener, bool of_operator) {
  if (core_.shutdown.begun()) return Refuse(Reason::kShuttingDown, "the daemon is stopping");
  BERTH_RETURN_IF_ERROR(session_places_.Check({.user = UserOf(tenant), .of_operator = of_operator}));
  const uint64_t own = core_.budgets.CountSessionsOf(tenant);
  const std::optional<uint64_t> quota = tenant_use_.QuotaOf(tenant).sessions;
  if (!of_operator && quota.has_value() && own >= *quota) {
    return RefuseWithRetry(Reason::kLimit, absl::Seconds(1), "sessions of the tenant: {current}, limit {limit}",
                           {{"what", "sessions_of_tenant"}, {"current", own}, {"limit", *quota}});
  }
  const SessionId id = core_.NewId<SessionId>();
  const Session& session = sessions_.Open(Session{.id = id,
                                                  .secret = secret,
                                                  .tenant = tenant,
                                                  .label = std::string(label),
                                                  .opened_at = now,
                                                  .opener = opener,
                                                  .of_operator = of_operator});
  session_places_.Take(session.claimant());
  core_.budgets.AddSession(tenant);
  return id;
}

absl::StatusOr<ChannelId> Sessions::JoinSession(absl::Time, SessionId session, const Secret& secret,
                                                const Tenant& tenant, const ProcessInfo& process) {
  if (core_.shutdown.begun()) return Refuse(Reason::kShuttingDown, "the daemon is stopping");
  const Session* const found = sessions_.Find(session);
  // A wrong secret and an unknown session get the same answer, so that the answer does not reveal whether a session
  // exists.
  if (!sessions_.HasSecret(session, secret) || found->state != SessionState::kActive) {
    return Refuse(Reason::kSessionEnded, "session {session} has ended", {{"session", session.value()}});
  }
  // The caller has the secret, so it may learn which container or user owns the session.
  if (found->tenant.container != tenant.container) {
    return Refuse(Reason::kBadCredentials,
                  "session {session} belongs to another container, or to a process outside this one: unset "
                  "BERTH_SESSION to open another session",
                  {{"session", session.value()}});
  }
  if (found->tenant != tenant) {
    return Refuse(Reason::kBadCredentials,
                  "session {session} belongs to user {owner}, and this process is user {user}: unset BERTH_SESSION "
                  "to open another session",
                  {{"session", session.value()}, {"owner", found->tenant.uid}, {"user", tenant.uid}});
  }
  const Limits& limits = core_.config.limits;
  if (found->channels.size() >= limits.channels_per_session) {
    return Refuse(Reason::kLimit, "{what}: {current}, limit {limit}",
                  {{"what", "channels_per_session"},
                   {"current", found->channels.size()},
                   {"limit", limits.channels_per_session}});
  }
  const ChannelId id = core_.NewId<ChannelId>();
  sessions_.Join(session, id, process);
  mailboxes_.Open(id, tenant);
  return id;
}

void Sessions::RecordSessionCredentials(absl::Time, SessionId session, uint64_t inode) {
  if (sessions_.Find(session) != nullptr) sessions_.Change(session).session_credentials = inode;
}

void Sessions::Detach(StepContext& step, const Core::Detached& detached) {
  for (const SessionId session : detached.sessions) {
    if (sessions_.Find(session) != nullptr) sessions_.Change(session).detached = true;
  }
  // Persisted: a later daemon in this PID namespace would take the pid for one of its own.
  for (const SessionId session : detached.unseen) {
    if (sessions_.Find(session) != nullptr) sessions_.Change(session).opener.pid = 0;
  }
  for (const ChannelId channel : detached.processes) {
    if (sessions_.FindChannel(channel) == nullptr) continue;
    core_.fences.EndFencesOf(step, channel);
    core_.modules.EndCompilesOf(step, channel);
    sessions_.ChangeChannel(channel).has_page = false;
    std::vector<Deliver> sends;
    const std::vector<ImportId> unsent = mailboxes_.DropMemory(channel, &sends);
    step.EmitAll(std::move(sends));
    for (const ImportId import : unsent) {
      core_.blocks.EndImport(step, *core_.blocks.FindByImport(import), import, LogCause::kNeverSent);
    }
  }
  // A pid of another PID namespace is none: a later daemon would take it for the pid of a process that has ended.
  for (const ChannelId channel : detached.unproven) {
    if (sessions_.FindChannel(channel) == nullptr) continue;
    Channel& unproven = sessions_.ChangeChannel(channel);
    unproven.unproven = true;
    unproven.process.pid = 0;
  }
  for (const SessionId session : detached.awaited) {
    if (sessions_.Find(session) != nullptr) Await(step, session);
  }
}

absl::Status Sessions::CheckRejoin(SessionId session, const Secret& secret, const Tenant& tenant,
                                   ChannelId channel) const {
  if (core_.shutdown.begun()) return Refuse(Reason::kShuttingDown, "the daemon is stopping");
  BERTH_ASSIGN_OR_RETURN(const Session* const found, sessions_.Authenticate(session, secret, tenant));
  // The channel of an ending session delivers the notice of the end. Its lifeline holds nothing any more.
  if (!channel && found->state != SessionState::kActive) {
    return Refuse(Reason::kSessionEnded, "session {session} has ended", {{"session", session.value()}});
  }
  if (!channel) return absl::OkStatus();
  const Channel* const joined = sessions_.FindChannel(channel);
  if (joined == nullptr || joined->session != session || joined->hung_up) {
    return Refuse(Reason::kNotJoined, "session {session}: channel {channel} has disconnected",
                  {{"session", session.value()}, {"channel", channel.value()}});
  }
  return absl::OkStatus();
}

void Sessions::Rejoined(StepContext& step, ChannelId channel) {
  const Channel* const found = sessions_.FindChannel(channel);
  if (found == nullptr || found->hung_up) return;
  if (found->unproven) sessions_.ChangeChannel(channel).unproven = false;
  std::vector<Deliver> sends;
  mailboxes_.SendAgain(channel, &sends);
  step.EmitAll(std::move(sends));
}

void Sessions::ReplaceChannel(StepContext& step, ChannelId earlier, ChannelId channel) {
  const Channel* const from = sessions_.FindChannel(earlier);
  const Channel* const to = sessions_.FindChannel(channel);
  if (from == nullptr || to == nullptr || from == to || !from->hung_up || from->session != to->session) return;
  // Other processes may wait for work that the channel has begun, until that work or the process has ended.
  if (!core_.fences.Quiet(earlier)) return;
  core_.fences.EndFencesOf(step, earlier);
  core_.blocks.MoveImports(earlier, channel);
  step.Emit(DropChannel{.channel = earlier});
  sessions_.EraseChannel(earlier);
}

void Sessions::DeliveryAcknowledged(StepContext& step, ChannelId channel, uint64_t number) {
  std::vector<Deliver> sends;
  mailboxes_.Acknowledge(channel, number, &sends);
  step.EmitAll(std::move(sends));
}

absl::StatusOr<const Session*> Sessions::Authenticate(const Caller& caller) const {
  if (caller.observer) {
    return Refuse(Reason::kObserverOnlyLooks,
                  "an observer's connection is read-only: connect to {socket}, or as an operator to {admin}",
                  {{"socket", "berthd.sock"}, {"admin", "admin.sock"}});
  }
  return sessions_.Authenticate(caller.credentials.session, caller.credentials.secret, caller.tenant);
}

void Sessions::PostToSession(StepContext& step, SessionId session, const attach::Delivery& delivery) {
  std::vector<Deliver> sends;
  for (const ChannelId channel : sessions_.Find(session)->channels) {
    mailboxes_.Post({.channel = channel, .delivery = delivery}, &sends);
  }
  step.EmitAll(std::move(sends));
}

absl::Status Sessions::MayDeliver(const Channel& channel) const {
  const uint64_t queued = mailboxes_.Queued(channel.id);
  const uint64_t limit = core_.config.limits.queued_deliveries_per_channel;
  if (queued < limit) return absl::OkStatus();
  return Refuse(Reason::kLimit, "{what}: {current}, limit {limit}; the process does not acknowledge its fds",
                {{"what", "queued_deliveries_per_channel"}, {"current", queued}, {"limit", limit}});
}

absl::StatusOr<SessionView> Sessions::GetSession(const Caller& caller, SessionId session) const {
  const SessionId id = session ? session : caller.credentials.session;
  const Session* const found = sessions_.Find(id);
  if (found == nullptr || (!caller.sees_all() && found->tenant != caller.tenant)) {
    return Refuse(Reason::kNotFound, "no {kind} {id}", {{"kind", "session"}, {"id", id.value()}});
  }
  return ViewSession(*found);
}

Page<SessionView> Sessions::ListSessions(const Caller& caller, const PageRequest& page) const {
  PageBuilder<SessionView> builder(page);
  sessions_.ForEachAfter(page.after, [&](const Session& session) {
    if (!caller.sees_all() && session.tenant != caller.tenant) return true;
    if (builder.Full()) return false;
    builder.Add(session.number, session.channels.size(), ViewSession(session));
    return true;
  });
  return builder.Build();
}

SessionView Sessions::ViewSession(const Session& session) const {
  SessionView view{.id = session.id,
                   .tenant = session.tenant,
                   .label = session.label,
                   .state = session.state,
                   .opened_at = session.opened_at,
                   .opener = session.opener};
  for (const ChannelId channel : session.channels) view.processes.push_back(sessions_.FindChannel(channel)->process);
  for (const auto& [name, pool] : core_.permits.pools()) {
    view.permit_units += pool.UnitsOf(session.id);
    view.waiters += pool.WaitersOf(session.id);
  }
  view.live = core_.blocks.table().LiveBytesOf(session.id);
  return view;
}

// ---- Ledger records of sessions, their processes, and the requests and deliveries of these -------------------

void Sessions::ListSessionRecords(std::vector<RecordKey>* keys) const {
  keys->push_back(KeyOf(RecordKind::kCounters));
  sessions_.ForEachAfter(0, [&](const Session& session) {
    keys->push_back(KeyOf(RecordKind::kSession, session.id.value()));
    return true;
  });
  sessions_.ForEachChannel([&](const Channel& channel) {
    keys->push_back(KeyOf(RecordKind::kChannel, channel.id.value()));
    channel.requests.ListRecords(keys);
  });
  mailboxes_.ListRecords(keys);
}

bool Sessions::WriteSessionRecord(const RecordKey& key, ArchiveWriter& archive) const {
  switch (static_cast<RecordKind>(key.kind)) {
    case RecordKind::kCounters: {
      const PermitIds& permits = core_.permits.ids();
      archive(permits.last_permit, permits.last_acquisition, permits.last_waiter, sessions_.last_number(),
              core_.plans.table().last_number(), core_.memory_log.last_record());
      return true;
    }
    case RecordKind::kSession: {
      const Session* const session = sessions_.Find(SessionId(key.id));
      if (session == nullptr) return false;
      archive(*session);
      return true;
    }
    case RecordKind::kChannel: {
      const Channel* const channel = sessions_.FindChannel(ChannelId(key.id));
      if (channel == nullptr) return false;
      archive(*channel);
      return true;
    }
    case RecordKind::kRequest:
      return core_.requests.WriteRequest({ChannelId(key.id), key.part}, archive);
    default:
      return mailboxes_.WriteRecord(key, archive);
  }
}

void Sessions::ReadSessionRecord(const RecordKey& key, ArchiveReader& archive) {
  switch (static_cast<RecordKind>(key.kind)) {
    case RecordKind::kCounters: {
      PermitIds permits;
      uint64_t last_session = 0, last_plan = 0, last_record = 0;
      archive(permits.last_permit, permits.last_acquisition, permits.last_waiter, last_session, last_plan, last_record);
      core_.permits.RestoreIds(permits);
      core_.memory_log.RestoreLastRecord(last_record);
      sessions_.RestoreLastNumber(last_session);
      return core_.plans.RestoreLastNumber(last_plan);
    }
    case RecordKind::kSession: {
      Session session{.id = SessionId(key.id)};
      archive(session);
      const Tenant tenant = session.tenant;
      const Claimant claimant = session.claimant();
      if (archive.failed() || !sessions_.Restore(std::move(session))) return archive.Fail();
      core_.budgets.AddSession(tenant);
      session_places_.Take(claimant);
      return;
    }
    case RecordKind::kChannel: {
      const ChannelId id(key.id);
      Channel channel = sessions_.NewChannel(id);
      archive(channel);
      const SessionId session = channel.session;
      const bool hung_up = channel.hung_up;
      if (archive.failed() || !sessions_.Restore(std::move(channel))) return archive.Fail();
      if (!hung_up) mailboxes_.Open(id, sessions_.Find(session)->tenant);
      return;
    }
    case RecordKind::kRequest:
      return core_.requests.ReadRequest({ChannelId(key.id), key.part}, archive);
    case RecordKind::kDelivery:
      return mailboxes_.ReadRecord(key, archive);
    default:
      return archive.Fail();
  }
}

void Sessions::ResumeSessions(StepContext& step) {
  core_.requests.Resume(step.now);
  sessions_.ForEachChannel([&](const Channel& channel) {
    if (channel.has_page) step.Emit(MakeFencePage{.channel = channel.id});
  });
  std::vector<Deliver> sends;
  // If a block no longer has such an import, its process has received and released it.
  mailboxes_.Resume(
      [this](const Deliver& deliver) {
        const attach::DeliveryKind what = deliver.delivery.what;
        if (what != attach::DeliveryKind::kBlock && what != attach::DeliveryKind::kHandleBlock) return true;
        return core_.blocks.FindByImport(ImportId(deliver.delivery.import)) != nullptr;
      },
      &sends);
  step.EmitAll(std::move(sends));
  core_.fences.ResumeSessions(step);
}

absl::Status Sessions::CheckTenants() const {
  SharedCount places("sessions", SharedCount::kUnlimited, SharedCount::kUnlimited);
  for (const Session* const session : sessions_.List()) places.Take(session->claimant());
  if (!(places == session_places_)) return Broken("the sessions of a user are miscounted");
  TenantUse::Uses counted;
  SharedCount waiting_bytes("waiting_bytes", SharedCount::kUnlimited, SharedCount::kUnlimited);
  for (const auto& [name, pool] : core_.permits.pools()) {
    for (const auto& [tenant, units] : pool.out_by_tenant()) counted[tenant].units += units;
  }
  for (const auto& [request, pending] : core_.requests.pending()) {
    const bool for_units = pending.place == &core_.permits;
    const bool for_bytes = pending.place == &core_.byte_queue || pending.place == &core_.blocks;
    if (!for_units && !for_bytes) continue;
    TenantUse::Use& use = counted[pending.session->tenant];
    ++use.waiters;
    use.unit_waiters += pending.for_units ? 1 : 0;
    waiting_bytes.Take(pending.session->claimant(), pending.weight);
    if (pending.for_units != for_units) return Broken("a waiting request is counted under another cause");
  }
  return tenant_use_.CheckInvariants(counted, waiting_bytes);
}

}  // namespace berth::core
