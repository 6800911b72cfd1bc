// The broker dies, at any point between a step and the last of its effects, and another follows.

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

void Simulation::LoseEffects() {
  const size_t carried = Draw(effects_.size() + 1);
  for (size_t i = 0; i < effects_.size(); ++i) {
    const Effect& effect = effects_[i];
    if (const auto* reply = std::get_if<Reply>(&effect.what); reply != nullptr && i >= carried) {
      const auto call = calls_.find(reply->call);
      if (call == calls_.end()) continue;
      ++counts_.lost_answers;
      Remember(call->second, *reply, /*lost=*/true);
    } else if (std::holds_alternative<Deliver>(effect.what) && i >= carried) {
      ++counts_.lost_deliveries;
    } else if (i >= carried && (std::holds_alternative<MakeFencePage>(effect.what) ||
                                std::holds_alternative<CreateBlock>(effect.what) ||
                                std::holds_alternative<ReleaseBlock>(effect.what))) {
      ++counts_.lost_jobs;
    } else {
      // What is in custody and has no row any more goes as it would have gone.
      CarryEffect(effect);
    }
  }
  effects_.clear();
}

void Simulation::Restart(bool kept) {
  ++counts_.restarts;
  if (kept) {
    Keep();
    LoseEffects();
  } else {
    ++counts_.lost_steps;
    effects_.clear();
  }
  calls_.clear();
  reaps_.clear();
  lost_.clear();
  last_effect_ = 0;
  ++config_.epoch;
  for (DeviceConfig& device : config_.devices) {
    device.generation = workers_[{device.ordinal, Lane::kMain}].generation;
    device.context_generation = workers_[{device.ordinal, Lane::kContext}].generation;
  }
  core_ = NewCore();
  // Which pages a process was sent is not written down: it is sent them again, which it does not mind.
  for (auto& [id, process] : processes_) process.pages.clear();
  absl::Status restored = core_->Restore(ViewsOf(rows_));
  if (restored.ok()) restored = core_->CheckBooks();
  if (!restored.ok()) {
    return Fail(absl::StrCat("a broker cannot go on: ", restored.message()));
  }
  // What waited in no place that outlives the broker is as if it had never come; all else is as it was.
  const Rows all = core_->AllRows();
  for (const auto& [key, content] : rows_) {
    const auto row = all.find(key);
    if (row != all.end() && row->second == content) continue;
    if (key.kind != static_cast<uint32_t>(RowKind::kRequest) || row != all.end()) {
      return Fail(absl::StrCat(NameOf(key), " is not what it was"));
    }
  }
  Keep();
  CheckRows();
  counts_.waited_on += core_->ListWaiters(Admin(), "").size();
  TellWorkers();
  core_->Resume(now_, &effects_);
  resuming_ = true;
  Carry();
  resuming_ = false;
  AskAgain();
}

void Simulation::CatchUp(Worker& worker) {
  for (const Job& job : std::exchange(worker.jobs, {})) {
    if (job.create.has_value()) {
      if (Chance(90)) worker.made[job.block] = *job.create;
    } else {
      worker.made.erase(job.block);
      worker.stuck.erase(job.block);
    }
  }
}

void Simulation::TellWorkers() {
  for (auto& [key, worker] : workers_) {
    Report(key);
    if (worker.state == DeviceState::kReady && worker.hung) {
      core_->WorkerAtWork(now_, key.first, key.second, &effects_);
    } else if (worker.state == DeviceState::kReady) {
      CatchUp(worker);
      core_->WorkerUp(now_, key.first, key.second, &effects_);
    } else {
      core_->WorkerDown(now_, key.first, key.second, worker.state, &effects_);
    }
  }
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

Simulation::Payload Simulation::NewPermitPayload(Client& client) {
  const uint64_t die = Draw(100);
  if (die < 12) {
    Payload payload = NewPlanPayload(client);
    if (auto* const plan = std::get_if<PlanRequest>(&payload)) plan->reserve = false;
    return payload;
  }
  if (die < 24) {
    GangRequest gang = NewGang();
    gang.reserve.clear();
    return gang;
  }
  if (die < 60 && !client.acquisitions.empty()) {
    const auto at = client.acquisitions.begin() + Draw(client.acquisitions.size());
    const AcquisitionId acquisition = *at;
    client.acquisitions.erase(at);
    return acquisition;
  }
  return NewAcquire();
}

}  // namespace berth::core
