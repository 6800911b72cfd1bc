#include "daemon/supervisor/processes/supervision.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/device/worker/worker_exit.h"

namespace berth {
namespace {

std::string Describe(const ProcessEnd& end) {
  switch (static_cast<WorkerExit>(end.code)) {
    case WorkerExit::kPoisoned:
      return "the driver returned an error that only a new process clears";
    case WorkerExit::kUnjudged:
      return "the driver returned an unknown error";
    case WorkerExit::kUnusable:
      return "the driver reports the device as unusable";
    case WorkerExit::kDeviceLost:
      return "the driver reports the device as lost";
    case WorkerExit::kDeviceMissing:
      return "the driver does not list this device: see the daemon's log";
    case WorkerExit::kDone:
    case WorkerExit::kFailed:
      break;
  }
  return absl::StrCat("the worker ended: ", end.ToString());
}

// Returns whether another worker would only end the same way.
bool IsFinal(const ProcessEnd& end) {
  return IsDeviceLost(end) || end.code == static_cast<int>(WorkerExit::kUnusable) ||
         end.code == static_cast<int>(WorkerExit::kDeviceMissing);
}

}  // namespace

bool IsDeviceLost(const ProcessEnd& end) { return end.code == static_cast<int>(WorkerExit::kDeviceLost); }

void Supervision::OnKilled(MonotonicTime now, Then then, const std::string& why) {
  if (state_ == State::kRunning) {
    state_ = State::kEnding;
    kill_deadline_ = now + kKillPatience;
    then_ = then;
    last_failure_ = why;
  } else if (then == Then::kStop && then_ != Then::kStop) {
    then_ = then;
    last_failure_ = why;
  }
}

bool Supervision::OnWanted() {
  if (state_ != State::kIdle) return false;
  state_ = State::kRunning;
  return true;
}

bool Supervision::Again() {
  state_ = on_demand_ ? State::kIdle : State::kRunning;
  return !on_demand_;
}

bool Supervision::OnEnded(MonotonicTime now, const ProcessEnd& end) {
  const State before = std::exchange(state_, State::kStopped);
  const Then then = std::exchange(then_, Then::kAsByItself);
  kill_deadline_ = MonotonicTime::max();
  if (before == State::kRunning) last_failure_ = Describe(end);
  if (before == State::kEnding && then == Then::kRestart) return Again();
  const bool stop = before == State::kAbandoned || then == Then::kStop || IsFinal(end);
  return !stop && restarts_.OnDeath(now) && Again();
}

void Supervision::OnNotStarted(const std::string& why) {
  state_ = State::kStopped;
  last_failure_ = why;
}

bool Supervision::OnEnabled() {
  if (state_ != State::kStopped) return false;
  restarts_ = WorkerRestarts();
  return Again();
}

bool Supervision::OnTime(MonotonicTime now) {
  const uint32_t left = restarts_left();
  restarts_.Forget(now);
  const bool abandoned = state_ == State::kEnding && now >= kill_deadline_;
  if (abandoned) {
    state_ = State::kAbandoned;
    kill_deadline_ = MonotonicTime::max();
    absl::StrAppend(&last_failure_, "; it did not end within ", kKillPatience.count(),
                    " s of SIGKILL; no other worker starts before its end");
  }
  return abandoned || restarts_left() != left;
}

MonotonicTime Supervision::next_change() const {
  return std::min(kill_deadline_, restarts_.next_forgotten());
}

uint32_t Supervision::restarts_left() const {
  return state_ == State::kStopped || state_ == State::kAbandoned ? 0 : restarts_.left();
}

}  // namespace berth
