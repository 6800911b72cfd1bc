// The end of sessions and of their processes, and the release of their leases.

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/status_macros.h"
#include "daemon/core/managers.h"
#include "daemon/core/sessions/sessions.h"
#include "daemon/core/sessions/shutdown.h"

namespace berth::core {

namespace {

absl::Status Ended(SessionId session, const EndNotice& end) {
  // The session's own process gets no notice.
  if (end.reason == EndReason::kUnknown || end.reason == EndReason::kEndedByOwnProcess) {
    return Refuse(Reason::kSessionEnded, "session {session} has ended", {{"session", session.value()}});
  }
  return Refuse(Reason::kSessionEnded, "session {session} has ended: {why}",
                {{"session", session.value()}, {"why", Describe(end)}});
}

}  // namespace

absl::Status Sessions::RefuseEnded(const Session& session, ChannelId channel) const {
  const attach::Delivery* const notice = mailboxes_.Find(channel, attach::DeliveryKind::kEnded);
  if (notice == nullptr) return Ended(session.id, {});
  return Ended(session.id, {.reason = static_cast<EndReason>(notice->why),
                            .uid = static_cast<uint32_t>(notice->owner)});
}

void Sessions::LifelineHungUp(StepContext& step, SessionId session, EndReason why) {
  if (const Session* const found = sessions_.Find(session)) BeginEnd(step, *found, {.reason = why});
}

bool Sessions::HasConnectedProcess(const Session& session) const {
  return std::any_of(session.channels.begin(), session.channels.end(), [this](ChannelId id) {
    const Channel& channel = *sessions_.FindChannel(id);
    return !channel.hung_up && !channel.unproven;
  });
}

bool Sessions::HasUnprovenProcess(const Session& session) const {
  return std::any_of(session.channels.begin(), session.channels.end(),
                     [this](ChannelId channel) { return sessions_.FindChannel(channel)->unproven; });
}

bool Sessions::HoldsLease(const Session& session) const {
  if (core_.permits.HasPermit(session.id) || core_.reservations.table().CountOf(session.id) > 0) return true;
  if (!HasUnprovenProcess(session)) return false;
  if (core_.plans.table().CountOf(session.id) > 0 || !core_.blocks.OwnedBy(session.id).empty()) return true;
  return std::any_of(session.channels.begin(), session.channels.end(), [this](ChannelId channel) {
    return core_.blocks.table().CountImportsOf(channel) > 0;
  });
}

void Sessions::Await(const StepContext& step, SessionId session) {
  const absl::Time at = step.now + core_.config.limits.unseen_patience;
  if (awaited_.try_emplace(session, at).second) awaited_by_time_.emplace(at, session);
}

void Sessions::StopAwaiting(SessionId session) {
  const auto found = awaited_.find(session);
  if (found == awaited_.end()) return;
  awaited_by_time_.erase({found->second, session});
  awaited_.erase(found);
}

void Sessions::EndIfUnused(StepContext& step, SessionId session) {
  const Session* const found = sessions_.Find(session);
  if (found == nullptr || HasConnectedProcess(*found)) return;
  if (HasUnprovenProcess(*found) || HoldsLease(*found)) return Await(step, session);
  BeginEnd(step, *found, {.reason = EndReason::kLifelineClosed});
}

void Sessions::EndAwaited(StepContext& step) {
  while (next_deadline() <= step.now) {
    const SessionId session = awaited_by_time_.begin()->second;
    StopAwaiting(session);
    const Session* const found = sessions_.Find(session);
    if (found == nullptr || HasConnectedProcess(*found)) continue;
    if (HoldsLease(*found)) {
      Await(step, session);
      continue;
    }
    BeginEnd(step, *found, {.reason = EndReason::kLifelineClosed});
    GiveUpUnproven(step, session);
  }
}

void Sessions::ChannelHungUp(StepContext& step, ChannelId channel) {
  const Channel* const found = sessions_.FindChannel(channel);
  if (found == nullptr || found->hung_up) return;
  sessions_.ChangeChannel(channel).hung_up = true;
  core_.requests.Dismiss(step, core_.requests.PendingOf(*found),
                         Refuse(Reason::kNotJoined, "session {session}: channel {channel} has disconnected",
                                {{"session", found->session.value()}, {"channel", channel.value()}}));
  std::vector<Deliver> sends;
  const std::vector<ImportId> unsent = mailboxes_.Close(channel, &sends);
  step.EmitAll(std::move(sends));
  for (const ImportId import : unsent) {
    core_.blocks.EndImport(step, *core_.blocks.FindByImport(import), import, LogCause::kNeverSent);
  }
  core_.permits.EndCachingBy(step, channel);
  core_.modules.EndCompilesOf(step, channel);
  step.Emit(CloseChannel{.channel = channel});
  FinishIfOver(step, *sessions_.Find(found->session));
}

// Ends a process that is dead or counts as dead.
void Sessions::EndProcess(StepContext& step, ChannelId channel) {
  const Channel* const found = sessions_.FindChannel(channel);
  if (found == nullptr) return;
  const Session& session = *sessions_.Find(found->session);
  core_.requests.Dismiss(
      step, core_.requests.PendingOf(*found),
      Refuse(Reason::kCancelled, "the process of channel {channel} has ended", {{"channel", channel.value()}}));
  core_.permits.TakeBackAllOf(step, channel);
  std::vector<Deliver> sends;
  mailboxes_.Close(channel, &sends);
  step.EmitAll(std::move(sends));
  core_.fences.EndFencesOf(step, channel);
  core_.modules.EndCompilesOf(step, channel);
  for (const ImportId import : core_.blocks.table().ImportsOf(channel)) {
    core_.blocks.EndImport(step, *core_.blocks.FindByImport(import), import, LogCause::kProcessGone);
  }
  step.Emit(DropChannel{.channel = channel});
  sessions_.EraseChannel(channel);
  FinishIfOver(step, session);
}

// Treats the session's unproven processes (session_table.h) as dead.
void Sessions::GiveUpUnproven(StepContext& step, SessionId session) {
  const Session* const found = sessions_.Find(session);
  if (found == nullptr) return;
  std::vector<ChannelId> unproven;
  for (const ChannelId channel : found->channels) {
    if (sessions_.FindChannel(channel)->unproven) unproven.push_back(channel);
  }
  // The end of the last process ends the session, too.
  for (const ChannelId channel : unproven) EndProcess(step, channel);
}

absl::StatusOr<SessionView> Sessions::EndSession(StepContext& step, const Caller& caller, SessionId session) {
  BERTH_ASSIGN_OR_RETURN(const Session* const own, Authenticate(caller));
  const SessionId id = session ? session : own->id;
  const Session* const found = sessions_.Find(id);
  if (found == nullptr || (found != own && !caller.admin)) {
    return Refuse(Reason::kNotFound, "no {kind} {id}", {{"kind", "session"}, {"id", id.value()}});
  }
  SessionView view = ViewSession(*found);
  view.state = SessionState::kEnding;
  if (found == own) {
    BeginEnd(step, *found, {.reason = EndReason::kEndedByOwnProcess}, caller.credentials.channel);
  } else {
    BeginEnd(step, *found, {.reason = EndReason::kSessionEnded, .uid = caller.tenant.uid});
  }
  // An operator's request replaces the missing proof of death.
  if (caller.admin) GiveUpUnproven(step, id);
  // Waiters have left, and the session may have ended.
  if (const Session* const ending = sessions_.Find(id)) view = ViewSession(*ending);
  return view;
}

void Sessions::BeginEnd(StepContext& step, const Session& session, const EndNotice& end, ChannelId asked_by) {
  if (session.state == SessionState::kEnding) return;
  sessions_.Change(session.id).state = SessionState::kEnding;
  std::vector<RequestId> requests;
  for (const ChannelId channel : session.channels) {
    for (const RequestId& request : core_.requests.PendingOf(*sessions_.FindChannel(channel)))
      requests.push_back(request);
  }
  core_.requests.Dismiss(step, requests, Ended(session.id, end));
  for (const ChannelId channel : session.channels) {
    core_.permits.EndCachingBy(step, channel);
    core_.modules.EndCompilesOf(step, channel);
  }
  core_.reservations.DropAllOf(step, session.id);
  std::vector<Deliver> sends;
  for (const ChannelId channel : session.channels) {
    attach::Delivery ended = {.what = attach::DeliveryKind::kEnded};
    if (channel != asked_by) {
      ended.owner = end.uid;
      ended.why = static_cast<uint64_t>(end.reason);
    }
    mailboxes_.Post(Deliver{.channel = channel, .delivery = ended}, &sends);
  }
  step.EmitAll(std::move(sends));
  FinishIfOver(step, session);
}

bool Sessions::HoldsNothing(const Session& session) const {
  if (session.state != SessionState::kEnding) return false;
  for (const ChannelId channel : session.channels) {
    if (!sessions_.FindChannel(channel)->hung_up || core_.blocks.table().CountImportsOf(channel) != 0) return false;
  }
  if (session.channels.empty()) return true;
  return !core_.permits.HasPermit(session.id);
}

bool Sessions::IsOver(const Session& session) const {
  if (!HoldsNothing(session)) return false;
  for (const ChannelId channel : session.channels) {
    if (!core_.fences.Quiet(channel)) return false;
  }
  return true;
}

void Sessions::FinishIfOver(StepContext& step, const Session& session) {
  if (!IsOver(session)) {
    if (HoldsNothing(session)) core_.fences.LookAtLater(step, session.id);
    return;
  }
  core_.fences.StopLooking(session.id);
  while (!session.channels.empty()) {
    const ChannelId channel = *session.channels.begin();
    core_.fences.EndFencesOf(step, channel);
    step.Emit(DropChannel{.channel = channel});
    sessions_.EraseChannel(channel);
  }
  core_.plans.EndAllOf(step, session.id);
  core_.permits.ReturnAll(step, session.id);
  for (Block* const block : core_.blocks.OwnedBy(session.id)) {
    if (block->phase == BlockPhase::kLive) core_.blocks.FreeBlock(step, *block, LogCause::kSessionEnd);
    // Bytes in release stay charged to the tenant only.
    if (block->charged_session) core_.budgets.ChargeTo(step, *block, SessionId(), block->charged_tenants);
  }
  core_.blocks.EndGrantsTo(session.id, session.tenant);
  step.Emit(DropSession{.session = session.id});
  const Tenant tenant = session.tenant;
  core_.budgets.Delist(session.budgets);
  session_places_.Give(session.claimant());
  sessions_.Erase(session.id);
  core_.budgets.RemoveSession(tenant);
}

// ---- shutdown.h ----------------------------------------------------------------------------------------------

OutCounts Shutdown::CountOut() const {
  OutCounts out;
  std::set<SessionId> owners;
  core_.blocks.table().ForEach([&](const Block& block) {
    if (block.phase != BlockPhase::kLive) return;
    if (block.owner) owners.insert(block.owner);
    ++out.blocks;
    out.bytes = Bytes(out.bytes.count() + block.bytes.count());
  });
  core_.sessions.table().ForEachAfter(0, [&](const Session& session) {
    uint64_t units = 0;
    for (const auto& [name, pool] : core_.permits.pools()) {
      units += pool.UnitsOf(session.id);
      out.waiters += pool.WaitersOf(session.id);
    }
    out.units += units;
    out.sessions += units > 0 || owners.contains(session.id) ? 1 : 0;
    return true;
  });
  return out;
}

void Shutdown::DrainToStop(StepContext& step, CallId call, const Caller& caller, absl::Time deadline) {
  absl::Status may = core_.sessions.Authenticate(caller).status();
  if (may.ok() && !caller.admin) {
    may = Refuse(Reason::kAdminOnly, "{verb} needs admin.sock, which accepts operators only", {{"verb", "StopNode"}});
  }
  if (!may.ok()) return core_.requests.Reply(step, call, may);
  drain_.calls.emplace(call, deadline);
  core_.permits.SetPaused(step, true);
}

bool Shutdown::CancelDrain(StepContext& step, CallId call) {
  if (drain_.calls.erase(call) == 0) return false;
  core_.requests.Reply(step, call, Refuse(Reason::kCancelled, "the call was cancelled"));
  if (drain_.calls.empty() && !drain_.done) core_.permits.SetPaused(step, false);
  return true;
}

void Shutdown::AnswerDrains(StepContext& step) {
  if (drain_.calls.empty()) return;
  bool empty = true;
  for (const auto& [name, pool] : core_.permits.pools()) empty = empty && !pool.HasPermits();
  core_.blocks.table().ForEach(
      [&](const Block& block) { empty = empty && !(block.phase == BlockPhase::kLive && block.owner); });
  for (auto it = drain_.calls.begin(); it != drain_.calls.end();) {
    if (!empty && step.now < it->second) {
      ++it;
      continue;
    }
    drain_.done = true;
    core_.requests.Reply(step, it->first, Response(DrainResult{.out = CountOut()}));
    it = drain_.calls.erase(it);
  }
}

void Shutdown::ShutDown(StepContext& step) {
  shutting_down_ = true;
  std::vector<RequestId> requests;
  core_.sessions.table().ForEachChannel([&](const Channel& channel) {
    for (const RequestId& request : core_.requests.PendingOf(channel)) requests.push_back(request);
  });
  const absl::Status stopping = Refuse(Reason::kShuttingDown, "the daemon is stopping");
  core_.requests.Dismiss(step, requests, stopping);
  core_.workers.CancelReaps(step, stopping);
  for (const auto& [call, deadline] : std::exchange(drain_.calls, {})) core_.requests.Reply(step, call, stopping);
}

}  // namespace berth::core
