#include "daemon/broker/broker.h"

#include <unistd.h>

#include <cstddef>
#include <iterator>
#include <string>
#include <utility>
#include <variant>

#include "common/status_macros.h"
#include "daemon/broker/event_loop.h"
#include "daemon/supervisor/processes/child_process.h"
#include "spdlog/spdlog.h"

namespace berth {
namespace {

bool IsRecord(const core::Effect& effect) {
  return std::holds_alternative<core::LogRecord>(effect.what) || std::holds_alternative<core::LeaseRecord>(effect.what);
}

bool TakesSystemCalls(const core::Effect& effect) {
  return !std::holds_alternative<core::Reply>(effect.what) && !IsRecord(effect);
}

}  // namespace

void Broker::RefuseRequests(absl::Status why) {
  MutexLock lock(&mu_);
  refusal_ = std::move(why);
}

absl::Status Broker::CheckServes() {
  MutexLock lock(&mu_);
  return CheckServesLocked();
}

absl::Status Broker::CheckLedger() {
  MutexLock lock(&mu_);
  return refusal_;
}

absl::Status Broker::CheckServesLocked() {
  if (!refusal_.ok()) return refusal_;
  return ledger_ == nullptr ? absl::OkStatus() : ledger_->CheckCapacity();
}

absl::Status Broker::CheckTakesProcesses(bool of_operator) {
  MutexLock lock(&mu_);
  if (ledger_ == nullptr) return absl::OkStatus();
  return of_operator ? ledger_->CheckCapacityToLook() : ledger_->CheckCapacity();
}

absl::StatusOr<std::string> Broker::RestoreLedger() {
  MutexLock lock(&mu_);
  if (ledger_ == nullptr) return "";
  const absl::Status whole = ledger_->CheckFile();
  if (absl::IsDataLoss(whole)) {
    BERTH_RETURN_IF_ERROR(ledger_->Migrate(core_.AllRecords()));
    return std::string(whole.message());
  }
  BERTH_RETURN_IF_ERROR(whole);
  BERTH_RETURN_IF_ERROR(ledger_->RestoreFile());
  return "";
}

void Broker::CommitChangesLocked() {
  changes_.Clear();
  core_.TakeChanges(&changes_);
  if (ledger_ == nullptr || changes_.empty()) return;
  const absl::Status committed = ledger_->Commit(changes_);
  if (committed.ok()) return;
  // The core is ahead of the persisted state, so no client may learn of this step. The next broker continues from the
  // persisted state.
  spdlog::critical("cannot write the ledger: {}; restarting the broker from the last commit",
                   std::string(committed.message()));
  ::_exit(absl::IsResourceExhausted(committed) ? kExitForWant : 1);
}

void Broker::EndStepLocked(core::Effects effects) {
  CommitChangesLocked();
  // Records go first, whichever thread executes the rest: a client that has its answer finds them in the log and in the
  // history.
  for (core::Effect& effect : effects) {
    if (const auto* record = std::get_if<core::LogRecord>(&effect.what)) {
      sink_.Apply(*record);
    } else if (std::holds_alternative<core::LeaseRecord>(effect.what)) {
      ready_.push_back({.effect = std::move(effect)});
    }
  }
  for (core::Effect& effect : effects) {
    if (IsRecord(effect)) continue;
    Ready ready{.effect = std::move(effect)};
    if (const auto* reply = std::get_if<core::Reply>(&ready.effect.what)) {
      const auto it = calls_.find(reply->call);
      if (it == calls_.end()) continue;
      ready.call = it->second;
      calls_.erase(it);
    }
    ready_.push_back(std::move(ready));
  }
  // A timer armed too early costs one check of due work; rearming it for every request would cost more.
  if (const absl::Time due = core_.next_deadline(); due < armed_) {
    armed_ = due;
    sink_.ArmTimer(due);
  }
}

void Broker::Submit(CallId id, Call* call, RequestStep step, bool always) {
  absl::Status served;
  {
    MutexLock lock(&mu_);
    if (!always) served = CheckServesLocked();
    if (served.ok()) {
      calls_[id] = call;
      core::Effects effects;
      step(core_, EventLoop::SteadyNow(), id, &effects);
      EndStepLocked(std::move(effects));
    }
  }
  if (!served.ok()) return call->Answer(std::move(served));
  Drain(call);
}

void Broker::Cancel(CallId id) {
  Step([id](core::Core& core, absl::Time now, core::Effects* effects) { core.CancelCall(now, id, effects); });
}

void Broker::Step(EventStep step) {
  {
    MutexLock lock(&mu_);
    core::Effects effects;
    step(core_, EventLoop::SteadyNow(), &effects);
    EndStepLocked(std::move(effects));
  }
  Drain(nullptr);
}

void Broker::TimerFired() {
  {
    MutexLock lock(&mu_);
    // The next due time must be armed anew, also if the timer fired early and nothing was due yet.
    armed_ = absl::InfiniteFuture();
    core::Effects effects;
    core_.Tick(EventLoop::SteadyNow(), &effects);
    EndStepLocked(std::move(effects));
  }
  Drain(nullptr);
}

void Broker::Drain(const Call* own) {
  bool mine = false;
  bool answered = false;
  while (true) {
    {
      MutexLock lock(&mu_);
      if (draining_ && !mine) return;
      batch_.clear();
      mine = draining_ = !ready_.empty();
      if (!mine) return;
      batch_.swap(ready_);
    }
    for (size_t i = 0; i < batch_.size(); ++i) {
      if (answered && TakesSystemCalls(batch_[i].effect)) return Leave(i);
      answered = answered || (own != nullptr && batch_[i].call == own);
      ApplyEffects(batch_[i]);
    }
  }
}

void Broker::Leave(size_t from) {
  {
    MutexLock lock(&mu_);
    ready_.insert(ready_.begin(), std::make_move_iterator(batch_.begin() + static_cast<ptrdiff_t>(from)),
                  std::make_move_iterator(batch_.end()));
    draining_ = false;
  }
  sink_.Wake();
}

void Broker::ApplyEffects(Ready& ready) {
  std::visit(
      [&](auto& what) {
        if constexpr (std::is_same_v<std::decay_t<decltype(what)>, core::Reply>) {
          ready.call->Answer(std::move(what.response));
        } else {
          sink_.Apply(what);
        }
      },
      ready.effect.what);
}

}  // namespace berth
