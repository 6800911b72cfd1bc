// Grants that processes take up by one atomic step (common/wire/take_up.h), and waiters whose processes are stopped.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/managers.h"
#include "daemon/core/permits/permit_transaction.h"
#include "daemon/core/permits/permits.h"
#include "daemon/core/requests/wait_weight.h"
#include "daemon/core/types/invariant.h"

namespace berth::core {
namespace {

// Longest time that a process may leave a grant untaken while another request waits. A process that runs takes a grant
// up within a millisecond; a machine under load may delay the process by a few hundred.
constexpr absl::Duration kTakeUpPatience = absl::Milliseconds(500);
// Interval between looks at the processes of waiting requests; and after a grant that was not taken up, because the
// next waiters may be stopped, too.
constexpr absl::Duration kLookInterval = absl::Milliseconds(250);
constexpr absl::Duration kLookIntervalAfterMiss = absl::Milliseconds(10);
// Age of an untaken grant to an unseen process at which the other unseen processes must call again. It is
// kTakeUpPatience less kLookInterval, so that a look comes in between.
constexpr absl::Duration kDoubtAfter = absl::Milliseconds(250);

}  // namespace

GrantOffer Permits::Offer(const StepContext& step, const RequestId& request) {
  if (find_take_up_ == nullptr) return GrantOffer::kFinal;
  const Pending& pending = core_.requests.pending().at(request);
  const Channel& channel = *core_.sessions.table().FindChannel(request.channel);
  if (!pending.takes_up || !channel.has_page) return GrantOffer::kFinal;
  // The process maps its page before it acknowledges the page. Until then only a further call proves that the process
  // is not stopped.
  if (core_.sessions.mailboxes().Owes(channel.id, attach::DeliveryKind::kOwnPage)) {
    return pending.resumed || pending.called == step.now ? GrantOffer::kFinal : GrantOffer::kWithheld;
  }
  TakeUpWords* const words = find_take_up_(channel.id);
  if (words == nullptr) return GrantOffer::kFinal;
  SettleTaken(channel.id);
  const auto may_reuse = [&](uint64_t sequence) {
    const RequestMemory::Entry* const entry = channel.requests.Find(sequence);
    return channel.requests.Settled(sequence) ||
           (entry != nullptr && entry->state == RequestMemory::State::kForgotten);
  };
  return words->Offer(request.sequence, may_reuse) ? GrantOffer::kOffered : GrantOffer::kWithheld;
}

void Permits::SettleTaken(ChannelId channel) {
  // The process has settled the requests whose grants it has taken up.
  const RequestMemory& requests = core_.sessions.table().FindChannel(channel)->requests;
  for (auto it = offers_.lower_bound({channel, 0}); it != offers_.end() && it->first.channel == channel;) {
    const RequestId earlier = it->first;
    ++it;
    if (requests.Settled(earlier.sequence)) SettleOffer(earlier);
  }
}

void Permits::RecordOffer(StepContext& step, AcquireOutcome& outcome) {
  const RequestId request = outcome.request;
  if (outcome.offer != GrantOffer::kOffered) {
    if (outcome.gang != nullptr) RecordTaken({.gang = std::move(outcome.gang)});
    return;
  }
  OfferedGrant offer{.session = core_.sessions.table().FindChannel(request.channel)->session, .since = step.now};
  if (outcome.granted.has_value()) {
    offer.pool = outcome.granted->pool;
    offer.acquisition = outcome.granted->acquisition;
    offer.waiter = std::move(outcome.granted->waiter);
  } else if (core_.requests.pending().at(request).plan == nullptr) {
    offer.gang = outcome.gang;
  }
  AddOffer(request, std::move(offer));
}

void Permits::PutBack(StepContext& step, GrantedWaiter withheld) {
  const RequestId request = withheld.waiter.request;
  const Waiter* const waiter =
      withheld.waiter.what.wait ? withheld.pool->PutBack(std::move(withheld.waiter)) : nullptr;
  if (waiter != nullptr) {
    core_.requests.SetPlace(request, this, {.pool = withheld.pool, .waiter = waiter, .number = waiter->number});
    core_.requests.Skip(step, request);
  } else {
    core_.requests.Answer(step, request, Requests::ProcessStopped(request));
  }
}

void Permits::AddOffer(const RequestId& request, OfferedGrant offer) {
  offers_by_time_.emplace(offer.since, request);
  if (offer.acquisition) offered_.emplace(offer.acquisition, request);
  const bool fresh = offers_.emplace(request, std::move(offer)).second;
  BERTH_INVARIANT(fresh);
}

Permits::OfferedGrant Permits::RemoveOffer(const RequestId& request) {
  OfferedGrant offer = std::move(offers_.extract(request).mapped());
  offers_by_time_.erase({offer.since, request});
  offered_.erase(offer.acquisition);
  return offer;
}

void Permits::RecordTaken(const OfferedGrant& offer) {
  if (offer.pool != nullptr) offer.pool->RecordTaken();
  if (offer.gang == nullptr) return;
  for (const Gang::Part& part : offer.gang->parts) part.pool->RecordTaken();
}

void Permits::SettleOffer(const RequestId& request) { RecordTaken(RemoveOffer(request)); }

void Permits::ResolveOffer(StepContext& step, const RequestId& request) {
  TakeUpWords* const words = find_take_up_(request.channel);
  if (words == nullptr || !words->Withdraw(request.sequence)) return SettleOffer(request);
  TakeBack(step, request, RemoveOffer(request));
}

void Permits::TakeBackGang(StepContext& step, const RequestId& request, const Gang* gang) {
  const Channel& channel = *core_.sessions.table().FindChannel(request.channel);
  const RequestMemory::Entry* const entry = channel.requests.Find(request.sequence);
  if (entry == nullptr || entry->state != RequestMemory::State::kAnswered) return;
  const absl::StatusOr<Response> answer = entry->answer();
  // The plan could not be completed, which ended its leases.
  if (!answer.ok()) return;
  const bool returns =
      gang != nullptr && gang->what.wait && core_.requests.Reopen(step, request, GangTable::WeightOf(*gang));
  if (!returns) core_.requests.DropAnswer(request);
  core_.requests.Undo(step, channel, *answer, LeaseEnd::kNotTakenUp);
  if (!returns) return;
  if (!PermitTransaction(core_, &step).PutBack(*gang)) return core_.requests.Drop(request);
  core_.requests.SetPlace(request, this);
  core_.requests.MarkWaiting(request);
}

void Permits::TakeBack(StepContext& step, const RequestId& request, OfferedGrant offer) {
  LookSoon(step);
  if (offer.pool == nullptr) return TakeBackGang(step, request, offer.gang.get());
  PermitTransaction transaction(core_, &step);
  const bool waits = offer.waiter.has_value() && offer.waiter->what.wait;
  const Waiter* const waiter = waits ? offer.pool->PutBack(*std::move(offer.waiter)) : nullptr;
  if (waiter == nullptr) {
    core_.requests.DropAnswer(request);
  } else if (core_.requests.Reopen(step, request, WaitWeight(*waiter))) {
    core_.requests.SetPlace(request, this, {.pool = offer.pool, .waiter = waiter, .number = waiter->number});
    core_.requests.MarkWaiting(request);
  } else {
    offer.pool->Leave(waiter->number);
  }
  // The permit may have ended meanwhile: revoked, or held too long.
  if (offer.pool->Holds(offer.session, offer.acquisition)) {
    offer.pool->Release(transaction.step(), offer.acquisition, LeaseEnd::kNotTakenUp);
  }
  transaction.Answer();
}

bool Permits::AnyoneWaits() const {
  // A gang's grant may have reserved bytes.
  if (core_.byte_queue.table().size() > 0) return true;
  return std::any_of(pools_.begin(), pools_.end(), [](const auto& pool) { return pool.second.HasAttached(); });
}

absl::Time Permits::next_offer() const {
  if (offers_by_time_.empty() || !AnyoneWaits()) return absl::InfiniteFuture();
  return offers_by_time_.begin()->first + kTakeUpPatience;
}

void Permits::ResolveOverdueOffers(StepContext& step) {
  while (next_offer() <= step.now) ResolveOffer(step, RequestId(offers_by_time_.begin()->second));
}

void Permits::TakeBackAllOf(StepContext& step, ChannelId channel) {
  for (auto it = offers_.lower_bound({channel, 0}); it != offers_.end() && it->first.channel == channel;) {
    const RequestId request = it->first;
    // The request does not return to its place.
    it->second.waiter.reset();
    it->second.gang.reset();
    ResolveOffer(step, request);
    it = offers_.upper_bound(request);
  }
}

void Permits::ForgetOffersOf(ChannelId channel) {
  for (auto it = offers_.lower_bound({channel, 0}); it != offers_.end() && it->first.channel == channel;) {
    const RequestId request = it->first;
    ++it;
    RemoveOffer(request);
  }
}

void Permits::BeginWait(StepContext& step, const RequestId& request) {
  const auto pending = core_.requests.pending().find(request);
  if (pending == core_.requests.pending().end() || !pending->second.takes_up || find_take_up_ == nullptr) return;
  Watch(step, request.channel);
  const Channel& channel = *core_.sessions.table().FindChannel(request.channel);
  if (channel.has_page || !core_.sessions.MayDeliver(channel).ok()) return;
  core_.fences.SendOwnPage(step, request);
}

void Permits::Watch(const StepContext& step, ChannelId channel) {
  watched_.insert(channel);
  look_at_ = std::min(look_at_, step.now + kLookInterval);
}

void Permits::LookSoon(const StepContext& step) {
  look_at_ = std::min(look_at_, std::max(step.now, looked_at_ + kLookIntervalAfterMiss));
}

void Permits::LookAtWaiters(StepContext& step) {
  if (look_at_ > step.now) return;
  std::set<ChannelId> channels;
  for (const auto& [since, request] : offers_by_time_) {
    if (channels.size() >= core_.config.limits.processes_per_look / 4) break;
    channels.insert(request.channel);
  }
  AddHeads(&channels);
  AddOthers(&channels);
  look_at_ = watched_.empty() ? absl::InfiniteFuture() : step.now + kLookInterval;
  if (watched_.empty()) return;
  looked_at_ = step.now;
  core::LookAtProcesses look;
  for (const ChannelId channel : channels) {
    const int32_t pid = core_.sessions.table().FindChannel(channel)->process.pid;
    if (pid > 0) look.processes.push_back({.channel = channel, .pid = pid});
  }
  if (!look.processes.empty()) step.Emit(std::move(look));
}

void Permits::AddHeads(std::set<ChannelId>* channels) const {
  const size_t most = core_.config.limits.processes_per_look / 4;
  const size_t each = std::max<size_t>(most / std::max<size_t>(pools_.size(), 1), 1);
  for (const auto& [name, pool] : pools_) {
    size_t visited = 0;
    pool.ForEachWaiter([&](const Waiter& waiter) {
      if (!waiter.detached && watched_.contains(waiter.request.channel)) channels->insert(waiter.request.channel);
      return ++visited < each;
    });
  }
}

void Permits::AddOthers(std::set<ChannelId>* channels) {
  auto at = watched_.upper_bound(last_looked_);
  const size_t most = core_.config.limits.processes_per_look;
  for (size_t left = watched_.size(); left > 0 && channels->size() < most; --left) {
    if (at == watched_.end()) at = watched_.begin();
    if (!MayBeSkipped(*at)) {
      at = watched_.erase(at);
      continue;
    }
    last_looked_ = *at++;
    channels->insert(last_looked_);
  }
}

bool Permits::MayBeSkipped(ChannelId channel) const {
  const Channel* const found = core_.sessions.table().FindChannel(channel);
  if (found == nullptr) return false;
  const std::vector<RequestId> requests = core_.requests.PendingOf(*found);
  return std::any_of(requests.begin(), requests.end(), [&](const RequestId& request) {
    const Pending& pending = core_.requests.pending().at(request);
    if (!pending.takes_up) return false;
    if (pending.place == &core_.byte_queue) return pending.call || core_.byte_queue.IsInvited(request);
    return pending.call && pending.place == this;
  });
}

void Permits::SkipRequest(StepContext& step, const RequestId& request) {
  const Pending& pending = core_.requests.pending().at(request);
  if (pending.place == &core_.byte_queue) return core_.byte_queue.SkipStopped(step, request);
  if (pending.ticket.pool != nullptr) {
    pending.ticket.pool->Detach(pending.ticket.number);
  } else {
    const Gang& gang = *gangs_.Find(request);
    for (const Gang::Part& part : gang.parts) part.pool->Detach(gang.number);
  }
  core_.requests.Skip(step, request);
}

bool Permits::IsUnseen(ChannelId channel) const {
  const Channel* const found = core_.sessions.table().FindChannel(channel);
  return found != nullptr && found->process.pid <= 0;
}

absl::Time Permits::DoubtedSince(absl::Time now) const {
  const absl::Time latest = now - kDoubtAfter;
  absl::Time since = absl::InfinitePast();
  core_.byte_queue.table().ForEachInvited([&](const Waiting& waiting) {
    if (*waiting.invited_since <= latest && IsUnseen(waiting.request.channel)) {
      since = std::max(since, *waiting.invited_since);
    }
  });
  size_t left = core_.config.limits.processes_per_look;
  auto at = offers_by_time_.lower_bound({latest + absl::Nanoseconds(1), RequestId()});
  for (; at != offers_by_time_.begin() && left > 0; --left) {
    const auto& [offered, request] = *--at;
    if (!IsUnseen(request.channel)) continue;
    const TakeUpWords* const words = find_take_up_(request.channel);
    if (words != nullptr && words->IsGranted(request.sequence)) return std::max(since, offered);
  }
  return since;
}

bool Permits::SkipSilent(StepContext& step) {
  // Before each look, so that the withdrawal of an overdue grant is never earlier.
  if (look_at_ > step.now || watched_.empty()) return false;
  const absl::Time since = DoubtedSince(step.now);
  if (since == absl::InfinitePast()) return false;
  std::set<ChannelId> channels;
  AddHeads(&channels);
  AddOthers(&channels);
  bool skipped = false;
  for (const ChannelId channel : channels) {
    if (!IsUnseen(channel)) continue;
    const std::vector<RequestId> requests = core_.requests.PendingOf(*core_.sessions.table().FindChannel(channel));
    const auto spoke = [&](const RequestId& request) { return core_.requests.pending().at(request).called > since; };
    if (std::any_of(requests.begin(), requests.end(), spoke)) continue;
    for (const RequestId& request : requests) {
      const Pending& pending = core_.requests.pending().at(request);
      const bool waits = pending.place == this || pending.place == &core_.byte_queue;
      if (!pending.takes_up || !pending.call || !waits) continue;
      SkipRequest(step, request);
      skipped = true;
    }
  }
  if (!skipped) return false;
  step.dirty.pools = true;
  ServeAll(step);
  return channels.size() >= core_.config.limits.processes_per_look;
}

void Permits::SkipStopped(StepContext& step, const std::vector<ChannelId>& channels) {
  for (const ChannelId channel : channels) {
    const Channel* const found = core_.sessions.table().FindChannel(channel);
    if (found == nullptr) continue;
    for (const RequestId& request : core_.requests.PendingOf(*found)) {
      const Pending& pending = core_.requests.pending().at(request);
      if (!pending.takes_up) continue;
      const bool for_units = pending.call && pending.place == this;
      if (for_units || pending.place == &core_.byte_queue) SkipRequest(step, request);
    }
    for (auto it = offers_.lower_bound({channel, 0}); it != offers_.end() && it->first.channel == channel;) {
      const RequestId request = it->first;
      ResolveOffer(step, request);
      it = offers_.upper_bound(request);
    }
  }
  step.dirty.pools = true;
  ServeAll(step);
}

void Permits::RestoreOffers(StepContext& step) {
  if (find_take_up_ == nullptr) return;
  std::vector<std::pair<RequestId, OfferedGrant>> found;
  std::vector<RequestId> ended;
  core_.sessions.table().ForEachChannel([&](const Channel& channel) {
    TakeUpWords* const words = channel.has_page && !channel.hung_up ? find_take_up_(channel.id) : nullptr;
    if (words == nullptr) return;
    words->ForEachUntaken([&](uint64_t sequence) {
      const RequestMemory::Entry* const entry = channel.requests.Find(sequence);
      // The earlier broker did not persist this grant, so no process knows of it.
      if (entry != nullptr && entry->state == RequestMemory::State::kPending) words->Retract(sequence);
      if (entry == nullptr || entry->state != RequestMemory::State::kAnswered) return;
      const absl::StatusOr<Response> answer = entry->answer();
      if (!answer.ok()) return;
      if (std::holds_alternative<GangResult>(*answer) || std::holds_alternative<PlanResult>(*answer)) {
        found.push_back({{channel.id, sequence}, {.session = channel.session, .since = step.now}});
      }
      const auto* const granted = std::get_if<AcquireResult>(&*answer);
      if (granted == nullptr) return;
      bool out = false;
      for (auto& [name, pool] : pools_) {
        if (!pool.Holds(channel.session, granted->acquisition)) continue;
        out = true;
        found.push_back({{channel.id, sequence},
                         {.session = channel.session,
                          .since = step.now,
                          .pool = &pool,
                          .acquisition = granted->acquisition}});
      }
      if (!out && words->IsWithdrawn(sequence)) ended.push_back({channel.id, sequence});
    });
  });
  // The earlier broker did not persist these withdrawals, and the permits have reached their hold limit since. The
  // process will ask again, and must not get the same answer.
  for (const RequestId& request : ended) core_.requests.DropAnswer(request);
  for (auto& [request, offer] : found) {
    const bool withdrawn = find_take_up_(request.channel)->IsWithdrawn(request.sequence);
    if (withdrawn) {
      // The earlier broker did not persist the withdrawal.
      TakeBack(step, request, std::move(offer));
    } else {
      AddOffer(request, std::move(offer));
    }
  }
}

}  // namespace berth::core
