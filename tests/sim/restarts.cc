// The broker dies: before a step is persisted, or after any of the effects of persisted steps. Another one follows.

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/types/record_kind.h"
#include "tests/sim/simulation.h"

namespace berth::core {
namespace {

std::string NameOf(const RecordKey& key) { return absl::StrCat("record ", key.kind, "/", key.id, "/", key.part); }

}  // namespace

void Simulation::Digest(size_t begin, size_t end) {
  if (options_.digest == nullptr) return;
  for (size_t i = begin; i < end; ++i) options_.digest->Add(effects_[i]);
}

void Simulation::Persist() {
  RecordBatch changes;
  core_->TakeChanges(&changes);
  if (options_.digest != nullptr) options_.digest->AddRecords(changes.bytes());
  changes.ApplyTo(&records_);
  persisted_steps_.push_back(effects_.size());
  for (const std::function<void()>& then : std::exchange(once_persisted_, {})) then();
}

void Simulation::CheckRecords() {
  const LedgerRecords all = core_->AllRecords();
  if (all == records_) return;
  for (const auto& [key, content] : all) {
    const auto found = records_.find(key);
    if (found == records_.end()) return Fail(absl::StrCat(NameOf(key), " was never written down"));
    if (found->second != content) return Fail(absl::StrCat(NameOf(key), " is not what was written down"));
  }
  for (const auto& [key, content] : records_) {
    if (!all.contains(key)) return Fail(absl::StrCat(NameOf(key), " is written down and gone"));
  }
}

void Simulation::TakeUncarriedSteps() {
  stalled_ = true;
  // Operators act so rarely that their commands would hardly ever be lost.
  if (Chance(5)) {
    BeginAct();
    Operate();
  } else {
    Act();
  }
  for (uint64_t more = Chance(40) ? Draw(3) : 0; more > 0; --more) {
    Persist();
    ActSafely();
  }
  const bool persisted = Chance(60);
  if (persisted) {
    Persist();
  } else {
    ++counts_.lost_steps;
  }
  // A message of an unpersisted step counts as unreceived, and is received again. The last message of a persisted step
  // may be, too.
  if (persisted && Chance(50)) said_.clear();
  once_persisted_.clear();
  Digest(persisted_steps_.empty() ? 0 : persisted_steps_.back(), effects_.size());
  effects_.resize(persisted_steps_.empty() ? 0 : persisted_steps_.back());
  stalled_ = false;
}

void Simulation::BeginAct() {
  said_.clear();
  fresh_session_ = SessionId();
  fresh_channel_ = ChannelId();
}

void Simulation::ActSafely() {
  BeginAct();
  const uint64_t die = Draw(100);
  if (die < 40) return Ask();
  if (die < 50) return Repeat();
  if (die < 60) return ForgetOne();
  if (die < 65) return CancelOne();
  if (die < 75) return Acknowledge();
  if (die < 85) return LetGo();
  if (die < 95) return Work();
  PassTime();
}

void Simulation::LoseEffects() {
  const size_t applied = Draw(effects_.size() + 1);
  Digest(0, effects_.size());
  late_ = true;
  size_t next = 0;
  for (const size_t end : persisted_steps_) {
    RecordExpired(next, end);
    for (; next < end; ++next) next < applied ? ApplyEffect(effects_[next]) : LoseEffect(effects_[next]);
  }
  late_ = false;
  effects_.clear();
  persisted_steps_.clear();
}

void Simulation::LoseEffect(const Effect& effect) {
  if (const auto* const reply = std::get_if<Reply>(&effect.what)) {
    const auto call = calls_.find(reply->call);
    if (call == calls_.end()) return;
    ++counts_.lost_answers;
    Remember(call->second, *reply, /*lost=*/true);
  } else if (std::holds_alternative<Deliver>(effect.what)) {
    ++counts_.lost_deliveries;
  } else if (std::holds_alternative<CreateBlock>(effect.what) || std::holds_alternative<ReleaseBlock>(effect.what)) {
    ++counts_.lost_jobs;
  } else if (std::holds_alternative<SendWorkerCommand>(effect.what)) {
    ++counts_.lost_commands;
  } else if (std::holds_alternative<ModuleWork>(effect.what)) {
    ++counts_.lost_module_work;
  } else if (const auto* const page = std::get_if<MakeFencePage>(&effect.what)) {
    ++counts_.lost_fd_changes;
    if (!pages_.contains(page->channel)) unmade_pages_.insert(page->channel);
  } else if (std::holds_alternative<DropFencePage>(effect.what) || std::holds_alternative<CloseChannel>(effect.what) ||
             std::holds_alternative<DropChannel>(effect.what) || std::holds_alternative<DropSession>(effect.what)) {
    ++counts_.lost_fd_changes;
  }
}

void Simulation::PassBrokerless() {
  for (uint64_t acts = Draw(6); acts > 0; --acts) {
    const uint64_t die = Draw(100);
    const std::optional<ChannelId> channel = SomeChannel();
    if (die < 40) {
      UseCached();
    } else if (die < 48 && channel.has_value()) {
      Die(*channel);
    } else if (die < 54 && channel.has_value()) {
      processes_.at(*channel).hung_up = true;
    } else if (die < 57 && !clients_.empty()) {
      Client& client = clients_.Nth(Draw(clients_.size()))->second;
      client.ended = client.hung_up = true;
    } else if (die < 67) {
      Work();
    } else if (die < 80) {
      FollowCommand();
    } else if (die < 85) {
      BreakWorker();
    } else if (die < 92) {
      MendWorker();
    } else {
      now_ += absl::Milliseconds(Draw(Chance(90) ? 100 : 6'000));
    }
  }
}

void Simulation::Restart() {
  ++counts_.restarts;
  settled_ = false;
  TakeUncarriedSteps();
  LoseEffects();
  calls_.clear();
  reaps_.clear();
  lost_.clear();
  dead_ = true;
  PassBrokerless();
  // The permit slots may show changes that the previous broker had not persisted.
  SettleCached();
  Restore(/*untold=*/settled_);
  dead_ = false;
  if (!status_.ok()) return;
  const RestoredState restored_state = MatchRestored();
  NotifyLosses(restored_state);
  NotifyWorkers();
  core_->Resume(now_, &effects_);
  Apply();
  LetPagesGo(restored_state);
  CheckPools();
  CheckDevices();
  CheckQuotas();
  settling_ = resuming_ = false;
  counts_.waited_on += core_->ListWaiters(Admin(), "").size();
  detached_until_ = now_ + kAbsence;
  // The next broker's patience starts now.
  for (auto& [request, offer] : offers_) offer.since = now_;
  seen_stopped_.clear();
  for (const auto& [channel, what] : std::exchange(said_, {})) {
    if (!processes_.contains(channel) || processes_.at(channel).hung_up) continue;
    ++counts_.heard_again;
    what();
    Apply();
  }
  AskAgain();
}

RestoredState Simulation::MatchRestored() {
  RestoredState restored_state = core_->WhatStands();
  resuming_ = true;
  MatchSessions(restored_state);
  MatchProcesses(restored_state);
  TakeUpModules();
  MatchLeases();
  settling_ = true;
  return restored_state;
}

void Simulation::Restore(bool unnotified) {
  last_effect_ = 0;
  records_lost_ = true;
  ++config_.epoch;
  for (DeviceConfig& device : config_.devices) {
    device.generation = workers_[{device.ordinal, WorkerKind::kMain}].generation;
    device.context_generation = workers_[{device.ordinal, WorkerKind::kContext}].generation;
  }
  if (Chance(10)) config_.warm_sizes = static_cast<uint32_t>(Draw(3));
  core_ = NewCore();
  // The pages sent to a process are not persisted: they are sent again, which is harmless.
  for (auto& [id, process] : processes_) process.pages.clear();
  absl::Status restored = core_->Restore(ViewsOf(records_));
  if (restored.ok()) restored = core_->CheckInvariants();
  if (!restored.ok()) return Fail(absl::StrCat("a broker cannot go on: ", restored.message()));
  // Requests in waiting places that do not outlive the broker are as if never sent; all else is unchanged.
  const LedgerRecords all = core_->AllRecords();
  for (const auto& [key, content] : records_) {
    const auto ledger_record = all.find(key);
    if (ledger_record != all.end() && ledger_record->second == content) continue;
    const bool of_permits = key.kind == static_cast<uint32_t>(RecordKind::kPermit) ||
                            key.kind == static_cast<uint32_t>(RecordKind::kAcquisition) ||
                            key.kind == static_cast<uint32_t>(RecordKind::kPoolCounters);
    // The process's right to cache it may have ended without a notification.
    const bool lent = key.kind == static_cast<uint32_t>(RecordKind::kPermit) && ledger_record != all.end();
    if ((unnotified && of_permits) || lent) continue;
    if (key.kind != static_cast<uint32_t>(RecordKind::kRequest) || ledger_record != all.end()) {
      return Fail(absl::StrCat(NameOf(key), " is not what it was"));
    }
  }
  Persist();
  CheckRecords();
}

void Simulation::MatchSessions(const RestoredState& restored_state) {
  std::set<SessionId> there;
  for (const RestoredState::Lifeline& lifeline : restored_state.lifelines) there.insert(lifeline.session);
  std::vector<SessionId> gone;
  for (const auto& [session, client] : clients_) {
    if (there.contains(session)) continue;
    if (!client.ended && session != fresh_session_) Fail("a session is lost");
    gone.push_back(session);
  }
  std::vector<ChannelId> left;
  for (const auto& [channel, process] : processes_) {
    if (!there.contains(process.session)) left.push_back(channel);
  }
  for (const ChannelId channel : left) ApplyDropChannel(channel);
  for (const SessionId session : gone) ApplyDropSession(session);
}

void Simulation::MatchProcesses(const RestoredState& restored_state) {
  std::set<ChannelId> there;
  for (const RestoredState::Process& process : restored_state.processes) there.insert(process.channel);
  std::erase_if(ghosts_, [&](const auto& ghost) { return !there.contains(ghost.first); });
  std::vector<ChannelId> gone;
  for (auto& [channel, process] : processes_) {
    if (there.contains(channel)) {
      process.replaced_by = ChannelId();
    } else {
      gone.push_back(channel);
    }
  }
  for (const ChannelId channel : gone) {
    if (channel == fresh_channel_) {
      processes_.erase(channel);
    } else {
      ApplyDropChannel(channel);
    }
  }
}

void Simulation::MatchLeases() {
  auto before = std::exchange(leases_, {});
  for (const LeaseRecord& lease : core_->ListLeases()) {
    leases_.emplace(lease.kind, lease.id);
    before.erase({lease.kind, lease.id});
  }
  counts_.unseen += before.size();
}

void Simulation::TakeUpModules() {
  modules_.Die();
  for (const ModuleRecord& record : modules_.OnDisk()) core_->RestoreModule(now_, record, &effects_);
  Apply();
}

void Simulation::NotifyLosses(const RestoredState& restored_state) {
  for (const RestoredState::LeasedBlock& block : restored_state.blocks) {
    if (InTheMaking(block.phase) || block.phase == BlockPhase::kRetired) continue;
    // The fd store has no fd of a context worker's block.
    if (!workers_[{block.device, WorkerKind::kMain}].made.contains(block.block)) {
      core_->BlockLost(now_, block.block, &effects_);
    }
  }
  Core::Detached still;
  for (const RestoredState::Process& process : restored_state.processes) {
    const auto here = processes_.find(process.channel);
    if (here != processes_.end() && here->second.away && process.detached && !process.hung_up) {
      still.processes.push_back(process.channel);
    }
  }
  core_->Detach(now_, still, &effects_);
  for (const RestoredState::Process& process : restored_state.processes) {
    const auto ghost = ghosts_.find(process.channel);
    const bool unseen = ghost != ghosts_.end() && ghost->second.unproven;
    if (!processes_.contains(process.channel) && !unseen) core_->ProcessGone(now_, process.channel, &effects_);
  }
  for (const RestoredState::Process& process : restored_state.processes) {
    const auto here = processes_.find(process.channel);
    if (here == processes_.end() || process.hung_up) continue;
    // A process without a socket that is not detached has hung up.
    if (here->second.away ? !process.detached : here->second.hung_up) {
      here->second.hung_up = true;
      core_->ChannelHungUp(now_, process.channel, &effects_);
    }
  }
  for (auto& [session, client] : clients_) {
    if (!client.hung_up) continue;
    client.unsaid_end = client.detached && Chance(50);
    if (client.unsaid_end) continue;
    core_->LifelineHungUp(now_, session, &effects_);
  }
  Apply();
}

void Simulation::LetPagesGo(const RestoredState& restored_state) {
  std::set<ChannelId> orphans = pages_;
  for (const RestoredState::Process& process : restored_state.processes) orphans.erase(process.channel);
  for (const ChannelId channel : orphans) ApplyDropPage(channel);
  unmade_pages_.clear();
}

void Simulation::CatchUp(Worker& worker) {
  for (const Job& job : std::exchange(worker.jobs, {})) {
    if (job.create.has_value()) {
      if (Chance(90)) worker.made.try_emplace(job.block, Worker::Memory{*job.create, worker.generation});
    } else {
      worker.made.erase(job.block);
      worker.stuck.erase(job.block);
    }
  }
}

void Simulation::NotifyWorkers() {
  for (auto& [key, worker] : workers_) {
    Report(key);
    if (worker.state != DeviceState::kReady) {
      NotifyDown(key);
    } else if (worker.hung || worker.behind || Chance(60)) {
      worker.behind = true;
      core_->WorkerAtWork(now_, key.first, key.second, &effects_);
    } else {
      CatchUp(worker);
      NotifyUp(key);
    }
  }
  Apply();
}

void Simulation::AskAgain() {
  std::vector<std::pair<ChannelId, uint64_t>> open;
  for (const auto& [channel, process] : processes_) {
    for (const auto& [sequence, request] : process.requests) open.emplace_back(channel, sequence);
  }
  for (const auto& [channel, sequence] : open) {
    const auto process = processes_.find(channel);
    if (process == processes_.end() || !MayAsk(channel) || process->second.stopped) continue;
    const Request& request = process->second.requests.at(sequence);
    const bool unread = process->second.unread.contains(sequence);
    if (!request.sent || request.settled || request.forgotten || unread || Chance(20)) continue;
    Send(channel, sequence, Payload(request.payload), /*reused=*/false);
    Apply();
  }
}

}  // namespace berth::core
