#include "daemon/broker/broker.h"

#include <unistd.h>

#include <cstddef>
#include <iterator>
#include <string>
#include <utility>
#include <variant>

#include "daemon/broker/event_loop.h"
#include "daemon/vault/child_process.h"
#include "spdlog/spdlog.h"

namespace berth {
namespace {

bool TakesSystemCalls(const core::Effect& effect) {
  return !std::holds_alternative<core::Reply>(effect.what) && !std::holds_alternative<core::LeaseRecord>(effect.what);
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

absl::Status Broker::CheckServesLocked() {
  if (!refusal_.ok()) return refusal_;
  return ledger_ == nullptr ? absl::OkStatus() : ledger_->CheckRoom();
}

absl::Status Broker::CheckTakesProcesses(bool of_operator) {
  MutexLock lock(&mu_);
  if (ledger_ == nullptr) return absl::OkStatus();
  return of_operator ? ledger_->CheckRoomToLook() : ledger_->CheckRoom();
}

void Broker::KeepChangesLocked() {
  changes_.Clear();
  core_.TakeChanges(&changes_);
  if (ledger_ == nullptr || changes_.empty()) return;
  const absl::Status kept = ledger_->Commit(changes_);
  if (kept.ok()) return;
  // The core is ahead of what is kept: nobody may hear of it. The next broker goes on from what is.
  spdlog::critical("ledger: {}", std::string(kept.message()));
  ::_exit(absl::IsResourceExhausted(kept) ? kExitForWant : 1);
}

void Broker::EndStepLocked(core::Effects effects) {
  KeepChangesLocked();
  for (core::Effect& effect : effects) {
    // Before anybody hears of it, whoever carries out the rest: who has its answer finds its record.
    if (const auto* record = std::get_if<core::LogRecord>(&effect.what)) {
      sink_.Carry(*record);
      continue;
    }
    Ready ready{.effect = std::move(effect)};
    if (const auto* reply = std::get_if<core::Reply>(&ready.effect.what)) {
      const auto it = calls_.find(reply->call);
      if (it == calls_.end()) continue;
      ready.call = it->second;
      calls_.erase(it);
    }
    ready_.push_back(std::move(ready));
  }
  // One that is armed too early costs a look at what is due then; arming it anew for every request would cost more.
  if (const absl::Time due = core_.next_deadline(); due < armed_) {
    armed_ = due;
    sink_.ArmTimer(due);
  }
}

void Broker::Submit(CallId id, Call* call, RequestStep step) {
  absl::Status served;
  {
    MutexLock lock(&mu_);
    served = CheckServesLocked();
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
    // Whatever is due next must be armed anew, also when the timer fired early and nothing was due yet.
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
      CarryOut(batch_[i]);
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

void Broker::CarryOut(Ready& ready) {
  std::visit(
      [&](auto& what) {
        if constexpr (std::is_same_v<std::decay_t<decltype(what)>, core::Reply>) {
          ready.call->Answer(std::move(what.response));
        } else {
          sink_.Carry(what);
        }
      },
      ready.effect.what);
}

}  // namespace berth
