// The broker dies: before a step is written down, or after any of the effects of those that are. Another follows.

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/row_kind.h"
#include "tests/sim/simulation.h"

namespace berth::core {
namespace {

std::string NameOf(const RowKey& key) { return absl::StrCat("row ", key.kind, "/", key.id, "/", key.part); }

}  // namespace

void Simulation::Keep() {
  RowBatch changes;
  core_->TakeChanges(&changes);
  changes.ApplyTo(&rows_);
  kept_steps_.push_back(effects_.size());
  for (const std::function<void()>& then : std::exchange(once_kept_, {})) then();
}

void Simulation::CheckRows() {
  const Rows all = core_->AllRows();
  if (all == rows_) return;
  for (const auto& [key, content] : all) {
    const auto kept = rows_.find(key);
    if (kept == rows_.end()) return Fail(absl::StrCat(NameOf(key), " was never written down"));
    if (kept->second != content) return Fail(absl::StrCat(NameOf(key), " is not what was written down"));
  }
  for (const auto& [key, content] : rows_) {
    if (!all.contains(key)) return Fail(absl::StrCat(NameOf(key), " is written down and gone"));
  }
}

void Simulation::TakeUncarriedSteps() {
  stalled_ = true;
  Act();
  for (uint64_t more = Chance(40) ? Draw(3) : 0; more > 0; --more) {
    Keep();
    ActSafely();
  }
  const bool kept = Chance(60);
  if (kept) {
    Keep();
  } else {
    ++counts_.lost_steps;
  }
  // What was not kept never was: it is heard once more. Of what was, what was said last may be.
  if (kept && Chance(50)) said_.clear();
  once_kept_.clear();
  effects_.resize(kept_steps_.empty() ? 0 : kept_steps_.back());
  stalled_ = false;
}

void Simulation::ActSafely() {
  said_.clear();
  fresh_session_ = SessionId();
  fresh_channel_ = ChannelId();
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
  const size_t carried = Draw(effects_.size() + 1);
  late_ = true;
  size_t next = 0;
  for (const size_t end : kept_steps_) {
    NoteExpired(next, end);
    for (; next < end; ++next) next < carried ? CarryEffect(effects_[next]) : LoseEffect(effects_[next]);
  }
  late_ = false;
  effects_.clear();
  kept_steps_.clear();
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
  } else if (std::holds_alternative<OrderDevice>(effect.what)) {
    ++counts_.lost_orders;
  } else if (std::holds_alternative<ModuleWork>(effect.what)) {
    ++counts_.lost_module_work;
  } else if (const auto* const page = std::get_if<MakeFencePage>(&effect.what)) {
    ++counts_.lost_custody;
    if (!pages_.contains(page->channel)) unmade_pages_.insert(page->channel);
  } else if (std::holds_alternative<DropFencePage>(effect.what) || std::holds_alternative<CloseChannel>(effect.what) ||
             std::holds_alternative<DropChannel>(effect.what) || std::holds_alternative<DropSession>(effect.what)) {
    ++counts_.lost_custody;
  }
}

void Simulation::PassBrokerless() {
  for (uint64_t acts = Draw(6); acts > 0; --acts) {
    const uint64_t die = Draw(100);
    const std::optional<ChannelId> channel = SomeChannel();
    if (die < 40) {
      UseKept();
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
      FollowOrder();
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
  // The words may tell of what the broker before had not written down.
  SettleKept();
  Restore(/*untold=*/settled_);
  dead_ = false;
  if (!status_.ok()) return;
  const Standing standing = core_->WhatStands();
  MatchSessions(standing);
  MatchProcesses(standing);
  resuming_ = true;
  TakeUpModules();
  MatchLeases();
  settling_ = true;
  TellLosses(standing);
  TellWorkers();
  core_->Resume(now_, &effects_);
  Carry();
  LetPagesGo(standing);
  CheckPools();
  CheckDevices();
  CheckQuotas();
  settling_ = resuming_ = false;
  counts_.waited_on += core_->ListWaiters(Admin(), "").size();
  for (const auto& [channel, what] : std::exchange(said_, {})) {
    if (!processes_.contains(channel) || processes_.at(channel).hung_up) continue;
    ++counts_.heard_again;
    what();
    Carry();
  }
  AskAgain();
}

void Simulation::Restore(bool untold) {
  last_effect_ = 0;
  records_lost_ = true;
  ++config_.epoch;
  for (DeviceConfig& device : config_.devices) {
    device.generation = workers_[{device.ordinal, Lane::kMain}].generation;
    device.context_generation = workers_[{device.ordinal, Lane::kContext}].generation;
  }
  if (Chance(10)) config_.warm_sizes = static_cast<uint32_t>(Draw(3));
  core_ = NewCore();
  // Which pages a process was sent is not written down: it is sent them again, which it does not mind.
  for (auto& [id, process] : processes_) process.pages.clear();
  absl::Status restored = core_->Restore(ViewsOf(rows_));
  if (restored.ok()) restored = core_->CheckBooks();
  if (!restored.ok()) return Fail(absl::StrCat("a broker cannot go on: ", restored.message()));
  // What waited in no place that outlives the broker is as if it had never come; all else is as it was.
  const Rows all = core_->AllRows();
  for (const auto& [key, content] : rows_) {
    const auto row = all.find(key);
    if (row != all.end() && row->second == content) continue;
    const bool of_permits = key.kind == static_cast<uint32_t>(RowKind::kPermit) ||
                            key.kind == static_cast<uint32_t>(RowKind::kAcquisition) ||
                            key.kind == static_cast<uint32_t>(RowKind::kPoolFigures);
    // That its process may keep it may be over without that process's having heard of it.
    const bool lent = key.kind == static_cast<uint32_t>(RowKind::kPermit) && row != all.end();
    if ((untold && of_permits) || lent) continue;
    if (key.kind != static_cast<uint32_t>(RowKind::kRequest) || row != all.end()) {
      return Fail(absl::StrCat(NameOf(key), " is not what it was"));
    }
  }
  Keep();
  CheckRows();
}

void Simulation::MatchSessions(const Standing& standing) {
  std::set<SessionId> there;
  for (const Standing::Lifeline& lifeline : standing.lifelines) there.insert(lifeline.session);
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
  for (const ChannelId channel : left) CarryDropChannel(channel);
  for (const SessionId session : gone) CarryDropSession(session);
}

void Simulation::MatchProcesses(const Standing& standing) {
  std::set<ChannelId> there;
  for (const Standing::Process& process : standing.processes) there.insert(process.channel);
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
      CarryDropChannel(channel);
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
  Carry();
}

void Simulation::TellLosses(const Standing& standing) {
  for (const Standing::LeasedBlock& block : standing.blocks) {
    if (InTheMaking(block.phase) || block.phase == BlockPhase::kRetired) continue;
    // A context worker's is in nobody's custody.
    if (!workers_[{block.device, Lane::kMain}].made.contains(block.block)) {
      core_->BlockLost(now_, block.block, &effects_);
    }
  }
  for (const Standing::Process& process : standing.processes) {
    if (!processes_.contains(process.channel)) core_->ProcessGone(now_, process.channel, &effects_);
  }
  for (const Standing::Process& process : standing.processes) {
    const bool here = processes_.contains(process.channel);
    if (!process.hung_up && here && processes_.at(process.channel).hung_up) {
      core_->ChannelHungUp(now_, process.channel, &effects_);
    }
  }
  for (const auto& [session, client] : clients_) {
    if (client.hung_up) core_->LifelineHungUp(now_, session, &effects_);
  }
  Carry();
}

void Simulation::LetPagesGo(const Standing& standing) {
  std::set<ChannelId> orphans = pages_;
  for (const Standing::Process& process : standing.processes) orphans.erase(process.channel);
  for (const ChannelId channel : orphans) CarryDropPage(channel);
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

void Simulation::TellWorkers() {
  for (auto& [key, worker] : workers_) {
    Report(key);
    if (worker.state != DeviceState::kReady) {
      TellDown(key);
    } else if (worker.hung || worker.behind || Chance(60)) {
      worker.behind = true;
      core_->WorkerAtWork(now_, key.first, key.second, &effects_);
    } else {
      CatchUp(worker);
      TellUp(key);
    }
  }
  Carry();
}

void Simulation::AskAgain() {
  for (const auto& [channel, process] : processes_) {
    if (!MayAsk(channel)) continue;
    for (const auto& [sequence, request] : process.requests) {
      if (!request.sent || request.settled || request.forgotten || Chance(20)) continue;
      Send(channel, sequence, request.payload, /*reused=*/false);
    }
  }
}

}  // namespace berth::core
