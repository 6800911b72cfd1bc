#include "daemon/core/requests/requests.h"

#include <cstdint>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include <berth/error.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "daemon/core/managers.h"
#include "daemon/core/plans/plan_transaction.h"
#include "daemon/core/requests/undo_step.h"
#include "daemon/core/requests/wait_weight.h"
#include "daemon/core/types/invariant.h"

namespace berth::core {
namespace {

// Time for which a restored request waits for its client to send it again. Callers of a dead broker need only a
// fraction of it to find the next broker.
constexpr absl::Duration kGracePeriod = absl::Seconds(5);

// Prefetches what the end of the request will touch. With thousands of waiting requests, none is in a near cache.
void Prefetch(const Pending& pending) {
  __builtin_prefetch(pending.memory);
  __builtin_prefetch(&pending.session->tenant);
  const WaitTicket& ticket = pending.ticket;
  if (ticket.pool != nullptr) ticket.pool->Prefetch(ticket.waiter, ticket.number);
}

}  // namespace

void Requests::Reply(StepContext& step, CallId call, absl::StatusOr<Response> response) {
  calls_.erase(call);
  step.Emit(core::Reply{.call = call, .response = std::move(response)});
}

absl::StatusOr<const Channel*> Requests::AdmitCaller(const Caller& caller) {
  if (core_.shutdown.begun()) return Refuse(Reason::kShuttingDown, "the daemon is stopping");
  BERTH_ASSIGN_OR_RETURN(const Session* const session, core_.sessions.Authenticate(caller));
  if (session->state != SessionState::kActive) {
    return core_.sessions.RefuseEnded(*session, caller.credentials.channel);
  }
  const Channel* const channel = core_.sessions.table().FindChannel(caller.credentials.channel);
  if (channel == nullptr || channel->session != session->id || channel->hung_up) {
    return Refuse(Reason::kNotJoined, "session {session}: channel {channel} has not joined or has disconnected",
                  {{"session", session->id.value()}, {"channel", caller.credentials.channel.value()}});
  }
  return channel;
}

std::optional<Admitted> Requests::Admit(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                                        uint64_t fingerprint, absl::Time deadline) {
  const absl::StatusOr<const Channel*> channel = AdmitCaller(caller);
  if (!channel.ok()) {
    Reply(step, call, channel.status());
    return std::nullopt;
  }
  RequestMemory& memory = core_.sessions.RequestsOf((*channel)->id);
  const absl::StatusOr<RequestMemory::Admission> admission = memory.Admit(tag, fingerprint);
  if (!admission.ok()) {
    Reply(step, call, admission.status());
    return std::nullopt;
  }
  if (admission->entry->state == RequestMemory::State::kAnswered) {
    Reply(step, call, admission->entry->answer());
    return std::nullopt;
  }
  const RequestId request{(*channel)->id, tag.sequence};
  PendingRequest& known = *pending_.try_emplace(request).first;
  const bool fresh_call = calls_.emplace(call, &known).second;
  BERTH_INVARIANT(fresh_call);
  Pending& pending = known.second;
  const CallId replaced = std::exchange(pending.call, call);
  pending.takes_up = tag.takes_up;
  pending.called = step.now;
  if (admission->fresh) {
    pending.memory = &memory;
    pending.session = core_.sessions.table().Find((*channel)->session);
    pending.since = step.now;
    return Admitted{request, *pending.session, **channel};
  }
  if (replaced) {
    Reply(step, replaced,
          Refuse(Reason::kCancelled, "request {sequence} of channel {channel}: a later call waits for the answer",
                 {{"channel", request.channel.value()}, {"sequence", request.sequence}}));
  }
  // A skipped request retains the deadline of its first call.
  const bool resumes = skipped_.contains(request);
  if (pending.place != nullptr && !resumes && pending.place->SetDeadline(request, pending.ticket, deadline)) {
    core_.Expire(step);
    // That may have ended this wait.
    if (!pending_.contains(request)) return std::nullopt;
  }
  pending.resumed = pending.resumed || resumes;
  if (detached_requests_.erase(request) + skipped_.erase(request) > 0) Reattach(step, request);
  return std::nullopt;
}

void Requests::Answer(StepContext& step, const RequestId& request, absl::StatusOr<Response> response) {
  auto pending = pending_.find(request);
  BERTH_INVARIANT(pending != pending_.end());
  core_.memory_log.LogAnswer(step, pending->second, response);
  if (const std::unique_ptr<PlanDraft> draft = std::move(pending->second.plan); draft != nullptr && response.ok()) {
    // Finish() may free resources for other requests.
    response = PlanTransaction(core_, &step).Finish(request, *draft, *response);
    pending = pending_.find(request);
  }
  const CallId call = pending->second.call;
  RequestMemory& memory = *pending->second.memory;
  MarkNotWaiting(pending->second);
  pending_.erase(pending);
  const bool unreceived = detached_requests_.erase(request) > 0 && !call;
  // The process of a skipped request fetches its answer when the process continues.
  skipped_.erase(request);
  // Do not cache a refusal that no client received; a retry is evaluated again.
  if (absl::IsUnavailable(response.status()) || (unreceived && !response.ok())) {
    memory.Erase(request.sequence);
  } else {
    memory.Answer(request.sequence, response);
  }
  if (call) Reply(step, call, std::move(response));
}

void Requests::Leave(StepContext& step, const std::vector<RequestId>& requests, const absl::Status& status) {
  for (const RequestId& request : requests) {
    const auto found = pending_.find(request);
    BERTH_INVARIANT(found != pending_.end());
    Pending pending = std::move(found->second);
    MarkNotWaiting(pending);
    pending_.erase(found);
    detached_requests_.erase(request);
    skipped_.erase(request);
    core_.memory_log.LogAnswer(step, pending, status);
    pending.place->Leave(step, request, pending.ticket);
    if (pending.call) Reply(step, pending.call, status);
  }
  core_.fences.AnswerLeft(step);
  core_.permits.ServeAll(step);
}

void Requests::Dismiss(StepContext& step, const std::vector<RequestId>& requests, const absl::Status& status) {
  // Erases first, so that Leave() finds no trace of the requests.
  for (const RequestId& request : requests) pending_.at(request).memory->Erase(request.sequence);
  Leave(step, requests, status);
}

std::vector<RequestId> Requests::PendingOf(const Channel& channel) const {
  std::vector<RequestId> requests;
  for (const uint64_t sequence : channel.requests.Pending()) requests.push_back({channel.id, sequence});
  return requests;
}

void Requests::MarkWaiting(const RequestId& request) {
  const auto found = pending_.find(request);
  if (found == pending_.end() || found->second.counted) return;
  Pending& pending = found->second;
  pending.for_units = pending.place != nullptr && pending.place->ForUnits();
  pending.counted = true;
  pending.weight = pending.place == nullptr ? kWaitEntryWeight : pending.place->Weigh(request, pending.ticket);
  pending.weight += WeighPlan(pending);
  core_.sessions.tenant_use().BeginWait(
      pending.session->tenant,
      {.claimant = pending.session->claimant(), .weight = pending.weight, .for_units = pending.for_units});
}

void Requests::MarkNotWaiting(const Pending& pending) {
  if (!pending.counted) return;
  core_.sessions.tenant_use().EndWait(
      pending.session->tenant,
      {.claimant = pending.session->claimant(), .weight = pending.weight, .for_units = pending.for_units});
}

uint64_t Requests::WeighPlan(const Pending& pending) {
  return pending.plan == nullptr ? 0 : WaitWeight(*pending.plan);
}

absl::Status Requests::CheckMayWait(const RequestId& request, uint64_t weight) const {
  const Pending& pending = pending_.at(request);
  return core_.sessions.tenant_use().CheckMayWait(pending.session->tenant, pending.session->claimant(),
                                                  weight + WeighPlan(pending));
}

void Requests::CancelCall(StepContext& step, CallId call) {
  if (core_.shutdown.CancelDrain(step, call)) return;
  if (core_.workers.CancelReap(step, call, Refuse(Reason::kCancelled, "the call was cancelled"))) return;
  const auto found = calls_.find(call);
  if (found == calls_.end()) return;
  auto& [request, pending] = *found->second;
  // The prefetches run while the refusal is built.
  pending_.prefetch(request);
  Prefetch(pending);
  const absl::Status cancelled =
      Refuse(Reason::kCancelled, "request {sequence} of channel {channel}: the call was cancelled",
             {{"channel", request.channel.value()}, {"sequence", request.sequence}});
  if (pending.place != nullptr && pending.place->OutlivesCall(request)) {
    pending.call = CallId();
    Reply(step, call, cancelled);
  } else {
    Dismiss(step, {RequestId(request)}, cancelled);
  }
}

void Requests::Reattach(StepContext& step, const RequestId& request) {
  const auto pending = pending_.find(request);
  if (pending == pending_.end() || pending->second.place == nullptr) return;
  pending->second.place->Reattach(step, request, WaitTicket(pending->second.ticket));
}

void Requests::DropDetached(StepContext& step) {
  if (step.now < detached_until_) return;
  detached_until_ = absl::InfiniteFuture();
  const std::vector<RequestId> requests(detached_requests_.begin(), detached_requests_.end());
  detached_requests_.clear();
  Dismiss(step, requests, Refuse(Reason::kCancelled, "no client repeated the request after the daemon's restart"));
}

void Requests::Skip(StepContext& step, const RequestId& request) {
  skipped_.insert(request);
  const CallId call = std::exchange(pending_.at(request).call, CallId());
  if (call) Reply(step, call, ProcessStopped(request));
}

absl::Status Requests::ProcessStopped(const RequestId& request) {
  return Refuse(Reason::kProcessStopped,
                "request {sequence} of channel {channel} is skipped until its process proves that it is not stopped: "
                "retry with the same sequence to continue the wait",
                {{"channel", request.channel.value()}, {"sequence", request.sequence}});
}

bool Requests::Reopen(StepContext& step, const RequestId& request, uint64_t weight) {
  const Channel& channel = *core_.sessions.table().FindChannel(request.channel);
  const RequestMemory::Entry* const entry = channel.requests.Find(request.sequence);
  const Session* const session = core_.sessions.table().Find(channel.session);
  if (entry == nullptr || entry->state != RequestMemory::State::kAnswered ||
      !core_.sessions.tenant_use().CheckMayWait(session->tenant, session->claimant(), weight).ok()) {
    DropAnswer(request);
    return false;
  }
  RequestMemory& memory = core_.sessions.RequestsOf(request.channel);
  memory.Reopen(request.sequence);
  pending_.emplace(request,
                   Pending{.memory = &memory, .session = session, .takes_up = true, .since = step.now});
  skipped_.insert(request);
  return true;
}

void Requests::Drop(const RequestId& request) {
  const auto pending = pending_.find(request);
  pending->second.memory->Erase(request.sequence);
  pending_.erase(pending);
  skipped_.erase(request);
}

void Requests::DropAnswer(const RequestId& request) {
  RequestMemory& memory = core_.sessions.RequestsOf(request.channel);
  const RequestMemory::Entry* const entry = memory.Find(request.sequence);
  if (entry != nullptr && entry->state == RequestMemory::State::kAnswered) memory.Erase(request.sequence);
}

void Requests::SetPlace(const RequestId& request, WaitPlace* place, const WaitTicket& ticket) {
  Pending& pending = pending_.at(request);
  pending.place = place;
  pending.ticket = ticket;
}

void Requests::Resume(absl::Time now) {
  if (!detached_requests_.empty()) detached_until_ = now + kGracePeriod;
}

// ---- Forgetting: reverts a request whose outcome its caller does not know, whatever the outcome --------------

void Requests::Forget(StepContext& step, CallId call, const Caller& caller, uint64_t sequence) {
  const absl::StatusOr<const Channel*> channel = AdmitCaller(caller);
  if (!channel.ok()) return Reply(step, call, channel.status());
  const absl::StatusOr<ForgetOutcome> outcome = ForgetRequest(step, **channel, sequence);
  if (!outcome.ok()) return Reply(step, call, outcome.status());
  Reply(step, call, Response(ForgetResult{.outcome = *outcome}));
}

absl::StatusOr<ForgetOutcome> Requests::ForgetRequest(StepContext& step, const Channel& channel, uint64_t sequence) {
  if (sequence == 0) {
    return Refuse(Reason::kInvalidField, "{field} is {value}, the least is {limit}",
                  {{"field", "sequence"}, {"value", 0}, {"limit", 1}});
  }
  RequestMemory& memory = core_.sessions.RequestsOf(channel.id);
  const RequestMemory::Entry* const entry = memory.Find(sequence);
  if (entry == nullptr) {
    // A settled request is refused even without a tombstone.
    if (memory.Settled(sequence)) return ForgetOutcome::kNothingToDo;
    BERTH_RETURN_IF_ERROR(memory.Bury(sequence, ForgetOutcome::kRemembered));
    return ForgetOutcome::kRemembered;
  }
  ForgetOutcome outcome = entry->outcome;
  switch (entry->state) {
    case RequestMemory::State::kForgotten:
      return outcome;
    case RequestMemory::State::kPending: {
      const RequestId request{channel.id, sequence};
      const bool making = pending_.at(request).place == &core_.blocks;
      outcome = making ? ForgetOutcome::kUndone : ForgetOutcome::kCancelled;
      Leave(step, {request},
            Refuse(Reason::kCancelled, "request {sequence} of channel {channel} was forgotten",
                   {{"channel", channel.id.value()}, {"sequence", sequence}}));
      break;
    }
    case RequestMemory::State::kAnswered: {
      const absl::StatusOr<Response> answer = entry->answer();
      if (answer.ok()) outcome = Undo(step, channel, *answer);
      break;
    }
  }
  BERTH_RETURN_IF_ERROR(memory.Bury(sequence, outcome));
  return outcome;
}

ForgetOutcome Requests::Undo(StepContext& step, const Channel& channel, const Response& answer, LeaseEnd end) {
  const UndoStep undo = {.core = core_, .step = step, .channel = channel, .end = end};
  const bool undone = std::visit([&](const auto& result) { return core::Undo(undo, result); }, answer);
  return undone ? ForgetOutcome::kUndone : ForgetOutcome::kNothingToDo;
}

// ---- Ledger records of pending requests, and the check of them -----------------------------------------------

bool Requests::WriteRequest(const RequestId& request, ArchiveWriter& archive) const {
  const Channel* const channel = core_.sessions.table().FindChannel(request.channel);
  if (channel == nullptr) return false;
  if (request.sequence == RequestMemory::kSettled) return channel->requests.WriteSettled(archive);
  const RequestMemory::Entry* const entry = channel->requests.Find(request.sequence);
  if (entry == nullptr) return false;
  archive(*entry);
  if (entry->state != RequestMemory::State::kPending) return true;
  // Another record stores where the request waits.
  const Pending& pending = pending_.at(request);
  archive(pending.log_records, pending.plan != nullptr);
  if (pending.plan != nullptr) archive(*pending.plan);
  archive(pending.since);
  return true;
}

void Requests::ReadRequest(const RequestId& request, ArchiveReader& archive) {
  const Channel* const channel = core_.sessions.table().FindChannel(request.channel);
  if (channel == nullptr) return archive.Fail();
  RequestMemory& memory = core_.sessions.RequestsOf(request.channel);
  if (request.sequence == RequestMemory::kSettled) return memory.ReadSettled(archive);
  RequestMemory::Entry entry;
  archive(entry);
  const bool waits = entry.state == RequestMemory::State::kPending;
  memory.Restore(request.sequence, std::move(entry));
  if (!waits) return;
  Pending pending{.memory = &memory, .session = core_.sessions.table().Find(channel->session)};
  bool has_plan = false;
  archive(pending.log_records, has_plan);
  if (has_plan) archive(*(pending.plan = std::make_unique<PlanDraft>()));
  if (archive.schema() >= 2) archive(pending.since);
  pending_.emplace(request, std::move(pending));
}

void Requests::FinishRestoringRequests() {
  std::vector<RequestId> nowhere;
  for (const auto& [request, pending] : pending_) {
    if (pending.place == nullptr) {
      nowhere.push_back(request);
    } else if (pending.place != &core_.blocks) {
      detached_requests_.insert(request);
    }
  }
  // Requests in no persisted wait place had no decision yet: a repeated request starts again.
  for (const RequestId& request : nowhere) {
    const auto pending = pending_.find(request);
    pending->second.memory->Erase(request.sequence);
    pending_.erase(pending);
  }
}

absl::Status Requests::CheckPending() const {
  uint64_t remembered = 0;
  uint64_t reachable = 0;
  bool mailboxes = true;
  core_.sessions.table().ForEachChannel([&](const Channel& channel) {
    remembered += channel.requests.Pending().size();
    reachable += channel.hung_up ? 0 : 1;
    mailboxes = mailboxes && core_.sessions.mailboxes().Has(channel.id) != channel.hung_up;
  });
  if (!mailboxes || reachable != core_.sessions.mailboxes().size())
    return Broken("a mailbox belongs to an absent channel");
  if (remembered != pending_.size()) {
    return Broken(absl::StrCat(pending_.size(), " requests are pending, ", remembered, " are recorded as pending"));
  }
  uint64_t calls = 0;
  for (const auto& [request, pending] : pending_) {
    calls += pending.call ? 1 : 0;
    const Channel* const channel = core_.sessions.table().FindChannel(request.channel);
    if (channel == nullptr || channel->hung_up) return Broken("a pending request belongs to an absent channel");
    if (pending.place == nullptr) return Broken("a pending request has no wait place");
    const bool attended = pending.call || detached_requests_.contains(request) || skipped_.contains(request);
    if (pending.place == &core_.permits && pending.ticket.pool != nullptr) {
      const Waiter* const waiter = pending.ticket.pool->FindWaiter(pending.ticket.number);
      if (waiter == nullptr || waiter != pending.ticket.waiter || waiter->request != request || !attended)
        return Broken("a request waits in no pool, or for no call");
    } else if (pending.place == &core_.permits) {
      if (!attended || !core_.permits.gangs().gangs().contains(request))
        return Broken("a gang has no wait place, or no call");
    } else if (pending.place == &core_.fences && !core_.fences.Waits(request)) {
      return Broken("a prepare waits for nothing");
    } else if (pending.place == &core_.blocks) {
      const Block* const block = core_.blocks.table().Find(BlockId(pending.ticket.number));
      if (block == nullptr || block->phase != BlockPhase::kReserved || block->request != request) {
        return Broken("a request waits for a block that is not allocated for it");
      }
    }
    if (!pending.call) continue;
    const auto call = calls_.find(pending.call);
    if (call == calls_.end() || call->second->first != request) return Broken("a waiting call is not recorded");
  }
  return calls == calls_.size() ? absl::OkStatus() : Broken("a call waits for nothing");
}

}  // namespace berth::core
