// Processes that stop and continue at any moment, also between a grant and its take-up (common/wire/take_up.h). The
// daemon sees some of the stops. No grant is used that was withdrawn.

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "tests/sim/simulation.h"

namespace berth::core {
namespace {

using Taking = TakeUpWords::Taking;

// The core's patience for a take-up.
constexpr absl::Duration kPatience = absl::Milliseconds(500);

}  // namespace

TakeUpWords* Simulation::FindTakeUpWords(ChannelId channel) {
  return options_.pauses && pages_.contains(channel) ? &take_up_[channel] : nullptr;
}

void Simulation::Pause() {
  const uint64_t die = Draw(100);
  if (die < 40) return SendAgain();
  if (die < 60) return core_->ProcessesStopped(now_, std::exchange(seen_stopped_, {}), &effects_);
  const std::optional<ChannelId> channel = SomeChannel();
  if (!channel.has_value()) return;
  Process& process = processes_.at(*channel);
  process.stopped = !process.stopped;
  if (process.stopped) {
    ++counts_.paused;
    // A command that the terminal stops reports that first.
    if (Chance(20) && !process.hung_up) core_->ProcessesStopped(now_, {*channel}, &effects_);
    return;
  }
  for (const uint64_t sequence : std::set<uint64_t>(process.unread)) ReadGrant(*channel, process, sequence);
}

void Simulation::SendAgain() {
  if (again_.empty()) return;
  const auto [channel, sequence] = again_.front();
  again_.pop_front();
  const auto found = processes_.find(channel);
  if (found == processes_.end() || !MayAsk(channel)) return;
  if (found->second.stopped) return again_.emplace_back(channel, sequence), void();
  const Request& request = found->second.requests.at(sequence);
  if (request.settled || request.forgotten || found->second.unread.contains(sequence)) return;
  Send(channel, sequence, Payload(request.payload), /*reused=*/false);
}

void Simulation::ApplyLook(const LookAtProcesses& look) {
  // In some runs the daemon cannot read the states of processes.
  if (options_.seed % 3 == 0) return;
  for (const LookAtProcesses::Process& looked : look.processes) {
    const auto found = processes_.find(looked.channel);
    if (found != processes_.end() && found->second.stopped) seen_stopped_.push_back(looked.channel);
  }
}

void Simulation::RecordOffer(ChannelId channel, uint64_t sequence, const Response& grant) {
  const TakeUpWords& words = take_up_[channel];
  words.ForEachUntaken([&](uint64_t untaken) {
    if (untaken != sequence) return;
    const bool withdrawn = words.IsWithdrawn(sequence);
    offers_.try_emplace({channel, sequence}, Offer{.grant = grant, .since = now_, .withdrawn_at_once = withdrawn});
  });
}

void Simulation::ReceiveGrant(ChannelId channel, Process& process, uint64_t sequence) {
  process.unread.insert(sequence);
  if (!process.stopped && Chance(80)) ReadGrant(channel, process, sequence);
}

void Simulation::ReadGrant(ChannelId channel, Process& process, uint64_t sequence) {
  process.unread.erase(sequence);
  const auto offer = offers_.find({channel, sequence});
  if (take_up_[channel].Take(sequence) == Taking::kWithdrawn) {
    if (offer != offers_.end()) offer->second.refused = true;
    again_.emplace_back(channel, sequence);
    return;
  }
  if (offer != offers_.end()) offers_.erase(offer);
  Request& request = process.requests.at(sequence);
  if (!request.first.has_value()) return Fail("a grant is used that was withdrawn");
  Receive(channel, process, request, *request.first);
}

bool Simulation::IsOut(const Response& grant) {
  if (const auto* const plan = std::get_if<PlanResult>(&grant)) {
    // A re-plan stays.
    return plan->from_revision != 0 || core_->GetPlan(Admin(), plan->layout->id).ok();
  }
  const auto* const gang = std::get_if<GangResult>(&grant);
  const AcquireResult& permit = gang == nullptr ? std::get<AcquireResult>(grant) : gang->permits.front();
  const auto known = permits_.find(permit.permit);
  if (known == permits_.end() || !known->second.second.contains(permit.acquisition)) return false;
  const std::set<AcquisitionId>& acquisitions = known->second.second;
  uint64_t depth = 0;
  for (const PermitView& view : core_->ListPermits(Admin(), "")) {
    if (view.id == permit.permit) depth = view.depth;
  }
  if (depth >= acquisitions.size()) return true;
  // Nested acquisitions have their own records.
  std::set<AcquisitionId> nested;
  for (const auto& [key, content] : core_->AllRecords()) {
    const AcquisitionId id(key.id);
    if (key.kind == static_cast<uint32_t>(RecordKind::kAcquisition) && acquisitions.contains(id)) nested.insert(id);
  }
  return permit.nested ? nested.contains(permit.acquisition) : depth > nested.size();
}

void Simulation::Unlearn(const Response& grant) {
  const auto forget = [&](const AcquireResult& permit) {
    if (const auto known = permits_.find(permit.permit); known != permits_.end()) {
      known->second.second.erase(permit.acquisition);
    }
  };
  if (const auto* const permit = std::get_if<AcquireResult>(&grant)) forget(*permit);
  if (const auto* const gang = std::get_if<GangResult>(&grant)) {
    for (const AcquireResult& permit : gang->permits) forget(permit);
  }
  const auto* const plan = std::get_if<PlanResult>(&grant);
  if (plan != nullptr && plan->from_revision == 0 && plans_.contains(plan->layout->id)) ForgetPlan(plan->layout->id);
}

void Simulation::SettleOffers() {
  for (auto it = offers_.begin(); it != offers_.end();) {
    const auto& [channel, sequence] = it->first;
    const Offer& offer = it->second;
    const auto found = processes_.find(channel);
    const bool withdrawn = offer.refused || take_up_[channel].IsWithdrawn(sequence);
    const bool out = !withdrawn || IsOut(offer.grant);
    if (withdrawn && !out) Unlearn(offer.grant);
    // The word may be that of an earlier grant. The process gets the same answer again then, even if the permit has
    // ended meanwhile.
    const bool forgotten = found != processes_.end() && found->second.requests.at(sequence).forgotten;
    const bool unclear = offer.withdrawn_at_once && found != processes_.end() && !forgotten;
    if (withdrawn && !out && !unclear) {
      ++counts_.withdrawn;
      if (found != processes_.end()) found->second.requests.at(sequence).first.reset();
    }
    // A withdrawal that a dead broker did not persist has no effect, once the process has found it.
    const bool replan = std::holds_alternative<PlanResult>(offer.grant) &&
                        std::get<PlanResult>(offer.grant).from_revision != 0;
    const bool may_be_out = offer.refused || offer.withdrawn_at_once || replan;
    if (withdrawn && out && !may_be_out && found != processes_.end() && !found->second.hung_up) {
      Fail("a grant is out that was withdrawn");
    }
    // The daemon may not know yet that a process has ended.
    const bool over = forgotten || (!out && !unclear) || (found == processes_.end() && !IsOut(offer.grant));
    it = over ? offers_.erase(it) : std::next(it);
  }
}

void Simulation::CheckOffers() {
  const auto waits = [](const WaiterView& waiter) { return !waiter.stopped; };
  for (const auto& [of, offer] : offers_) {
    const auto& [channel, sequence] = of;
    const auto found = processes_.find(channel);
    if (now_ - offer.since < kPatience || offer.refused || take_up_[channel].IsWithdrawn(sequence)) continue;
    // An ended process takes nothing up. A permit that its session has released is nobody's any more.
    if (found == processes_.end() || !MayAsk(channel) || !pages_.contains(channel) || !IsOut(offer.grant)) continue;
    // A dead broker may have reused the word of a request that it then did not forget.
    if (found->second.requests.at(sequence).given_up) continue;
    const std::vector<WaiterView> waiters = core_->ListWaiters(Admin(), "");
    if (std::any_of(waiters.begin(), waiters.end(), waits)) Fail("a grant is left untaken while another request waits");
  }
}

}  // namespace berth::core
