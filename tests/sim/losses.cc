// The whole daemon stops, or is killed, and another one starts: every fd, page, worker and message is lost. The ledger
// remains. The processes live on, die, and reconnect in any order, late or never.

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "tests/sim/simulation.h"

namespace berth::core {
void Simulation::StopAndStart() {
  ++counts_.stops;
  SettleCached();
  std::vector<AcquireResult> cached;
  const auto record_cached = [&] {
    for (const auto& [channel, permit] : left_cached_) cached.push_back(permit);
    for (const auto& [channel, process] : processes_) {
      if (process.cached.has_value()) cached.push_back(*process.cached);
    }
  };
  record_cached();
  TakeUncarriedSteps();
  LoseEffects();
  record_cached();
  SettleCached();
  calls_.clear();
  reaps_.clear();
  lost_.clear();
  said_.clear();
  dead_ = true;
  LoseFds();
  PassDaemonless();
  pages_lost_ = true;
  Restore(/*untold=*/false);
  dead_ = false;
  if (!status_.ok()) return;
  RecallCached(cached);
  const RestoredState restored_state = MatchRestored();
  NotifyOfLosses(restored_state, /*elsewhere=*/Chance(15));
  pages_lost_ = false;
  NotifyWorkers();
  core_->Resume(now_, &effects_);
  Apply();
  CheckPools();
  CheckDevices();
  CheckQuotas();
  settling_ = resuming_ = false;
  CheckLosses();
  counts_.waited_on += core_->ListWaiters(Admin(), "").size();
  detached_until_ = now_ + kAbsence;
  AskAgain();
}

void Simulation::LoseFds() {
  for (auto& [channel, process] : processes_) LoseSockets(channel, process);
  cachers_.clear();
  left_cached_.clear();
  pages_.clear();
  unmade_pages_.clear();
  permit_slots_.clear();
  fence_values_.clear();
  queued_.clear();
  for (auto& [session, client] : clients_) client.detached = !client.no_credentials;
  LoseWorkers();
}

void Simulation::LoseSockets(ChannelId channel, Process& process) {
  process.away = process.may_skip = true;
  process.fds_under_way.clear();
  process.streams.clear();
  process.uses.clear();
  process.wanted.clear();
  process.pages.clear();
  process.own_page = 0;
  process.mapped_own_page = false;
  alone_.Forget(channel);
  // The process releases a permit without a permit slot like any other.
  if (process.cached.has_value()) clients_.at(process.session).acquisitions.push_back(process.cached->acquisition);
  process.cached.reset();
  process.keeps = process.in_use = process.owes_look = false;
  for (auto& [sequence, request] : process.requests) request.of_earlier = request.of_earlier || request.sent;
}

void Simulation::LoseWorkers() {
  std::set<BlockId> mapped;
  for (const auto& [channel, process] : processes_) {
    for (const auto& [import, block] : process.mapped) mapped.insert(block);
  }
  for (auto& [key, worker] : workers_) {
    const bool context = key.second == WorkerKind::kContext;
    const uint64_t generation = worker.generation;
    auto made = std::move(worker.made);
    worker = Worker();
    // The record of generations may lack the last one, so the next generation skips one.
    worker.generation = generation == 0 ? 0 : generation + 2;
    if (context) worker.state = DeviceState::kIdle;
    counts_.lost_blocks += context ? made.size() : 0;
    // Processes that mapped the block still have its memory.
    for (const auto& [block, memory] : made) {
      if (!context && mapped.contains(block)) worker.made.emplace(block, memory);
    }
  }
}

void Simulation::PassDaemonless() {
  for (uint64_t acts = Draw(6); acts > 0; --acts) {
    const uint64_t die = Draw(100);
    const std::optional<ChannelId> channel = SomeChannel();
    if (die < 30 && channel.has_value()) {
      Die(*channel);
    } else if (die < 45 && channel.has_value()) {
      processes_.at(*channel).hung_up = true;
    } else if (die < 60 && !clients_.empty()) {
      Client& client = clients_.Nth(Draw(clients_.size()))->second;
      client.ended = client.hung_up = true;
    } else {
      now_ += absl::Milliseconds(Draw(Chance(90) ? 100 : 6'000));
    }
  }
}

void Simulation::RecallCached(const std::vector<AcquireResult>& cached) {
  for (const PermitView& view : core_->ListPermits(Admin(), "")) {
    for (const AcquireResult& own : cached) {
      const auto known = permits_.find(view.id);
      if (own.permit != view.id || (known != permits_.end() && known->second.second.size() >= view.depth)) continue;
      permits_[view.id].first = view.session;
      permits_[view.id].second.insert(own.acquisition);
      // The process finds no use of it in its permit slot, and releases it.
      if (clients_.contains(view.session)) clients_.at(view.session).acquisitions.push_back(own.acquisition);
    }
  }
}

void Simulation::NotifyOfLosses(const RestoredState& restored_state, bool elsewhere) {
  for (const RestoredState::LeasedBlock& block : restored_state.blocks) {
    if (InTheMaking(block.phase) || block.phase == BlockPhase::kRetired) continue;
    counts_.blocks_gone += block.phase == BlockPhase::kLive ? 1 : 0;
    core_->BlockLost(now_, block.block, &effects_);
  }
  Core::Detached detached;
  std::vector<ChannelId> gone;
  for (const RestoredState::Process& process : restored_state.processes) {
    // A session that was ending may have ended since.
    if (!clients_.contains(process.session)) continue;
    const auto here = processes_.find(process.channel);
    const bool unproven = elsewhere || process.unproven;
    if (unproven) {
      detached.unproven.push_back(process.channel);
      const bool dead = here == processes_.end();
      const Process ghost{.session = process.session, .unproven = true};
      if (dead && ghosts_.insert_or_assign(process.channel, ghost).second) ++counts_.ghosts;
    } else if (here == processes_.end()) {
      gone.push_back(process.channel);
      continue;
    }
    if (here != processes_.end()) here->second.unproven = unproven;
    detached.processes.push_back(process.channel);
  }
  std::vector<SessionId> over;
  for (const RestoredState::Lifeline& lifeline : restored_state.lifelines) {
    if (!clients_.contains(lifeline.session)) continue;
    Client& client = clients_.at(lifeline.session);
    if (lifeline.session_credentials != 0 && !lifeline.ending) {
      detached.sessions.push_back(lifeline.session);
      client.unsaid_end = client.hung_up;
    } else {
      over.push_back(lifeline.session);
      client.ended = client.hung_up = true;
      client.unsaid_end = false;
    }
  }
  core_->Detach(now_, detached, &effects_);
  for (const ChannelId channel : gone) core_->ProcessGone(now_, channel, &effects_);
  for (const SessionId session : over) {
    core_->LifelineHungUp(now_, session, &effects_, EndReason::kStateLost);
  }
  Apply();
}

void Simulation::CheckLosses() {
  for (const BlockView& block : core_->ListBlocks(Admin())) {
    // A context worker's block is stale, and is charged to its owner until the owner frees it.
    if (block.state == BlockState::kLive && WorkerKindOf(block.export_kind) == WorkerKind::kMain) {
      Fail("a block is live that was lost");
    }
  }
  for (const DeviceView& device : core_->ListDevices()) {
    const auto drained = drained_.find(device.ordinal);
    if (device.drain_reason != (drained == drained_.end() ? "" : drained->second)) Fail("a drain is not what it was");
  }
}

void Simulation::Resume() {
  // A holder's end is detected, or an operator acts.
  if (Chance(20)) {
    for (auto& [session, client] : clients_) {
      if (!client.unsaid_end || Chance(50)) continue;
      client.unsaid_end = false;
      return core_->LifelineHungUp(now_, session, &effects_);
    }
    if (!ghosts_.empty() && Chance(10)) EndByOperator(ghosts_.begin()->second.session);
    return;
  }
  for (int tries = 0; tries < 6; ++tries) {
    const std::optional<ChannelId> channel = SomeChannel();
    if (!channel.has_value()) return;
    Process& process = processes_.at(*channel);
    if (process.away && !process.hung_up) return ResumeProcess(*channel, process);
  }
}

void Simulation::ResumeProcess(ChannelId channel, Process& process) {
  Client& client = clients_.at(process.session);
  Secret secret = client.secret;
  if (Chance(3)) {
    secret.bits[15] ^= 1;
    if (core_->CheckRejoin(process.session, secret, client.tenant, channel).ok()) Fail("a wrong secret rejoins");
    return;
  }
  if (client.unsaid_end) return;
  const absl::Status lifeline = core_->CheckRejoin(process.session, secret, client.tenant, ChannelId());
  const absl::Status rejoined = core_->CheckRejoin(process.session, secret, client.tenant, channel);
  // The channel of an ended session receives the notice of the end.
  if (client.ended != IsRefusal(lifeline, Reason::kSessionEnded) || lifeline.ok() == client.ended || !rejoined.ok()) {
    return Fail(absl::StrCat("rejoining is judged wrongly: ", lifeline.ToString(), ", ", rejoined.ToString()));
  }
  ++(client.ended ? counts_.not_resumed : counts_.resumed);
  process.away = process.unproven = false;
  core_->Rejoined(now_, channel, &effects_);
  for (const ImportId import : std::exchange(process.unsaid, {})) {
    Say(channel, [this, channel, import] { core_->ImportLetGo(now_, channel, import, &effects_); });
  }
}

void Simulation::EndByOperator(SessionId session) {
  Client& client = clients_.at(session);
  client.ended = true;
  client.unsaid_end = false;
  const Caller caller{.credentials = {.session = session, .secret = client.secret},
                      .tenant = client.tenant,
                      .admin = true};
  std::vector<ChannelId> given_up;
  for (const auto& [channel, process] : processes_) {
    if (process.session == session && process.unproven) given_up.push_back(channel);
  }
  // The operator's command replaces the proof that they have ended.
  for (const ChannelId channel : given_up) {
    ++counts_.given_up;
    Die(channel);
  }
  if (!core_->EndSession(now_, caller, session, &effects_).ok()) Fail("an operator cannot end a session");
  Apply();
  for (const auto& [channel, process] : ghosts_) {
    if (process.session == session) return Fail("a process is counted that an operator has given up");
  }
}

void Simulation::CheckDetached() {
  if (now_ < detached_until_) return;
  detached_until_ = absl::InfiniteFuture();
  std::set<SessionId> asking;
  for (const auto& [call, what] : calls_) {
    if (processes_.contains(what.channel)) asking.insert(processes_.at(what.channel).session);
  }
  for (const WaiterView& waiter : core_->ListWaiters(Admin(), "")) {
    // A skipped request waits without a call.
    if (options_.pauses && waiter.stopped) continue;
    if (!asking.contains(waiter.session)) Fail("one waits for whom nobody asks any more");
  }
}

}  // namespace berth::core
