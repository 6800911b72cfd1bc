#include "client/sdk/transport/call_timer.h"

#include <utility>

namespace berth::internal {

CallTimer::Alarm::Alarm(CallTimer* timer, absl::Time deadline, std::function<void()> on_late)
    : timer_(deadline == absl::InfiniteFuture() ? nullptr : timer) {
  if (timer_ == nullptr) return;
  MutexLock lock(&timer_->mu_);
  at_ = timer_->alarms_.emplace(deadline + kGrace, std::move(on_late));
  if (!timer_->thread_.joinable()) {
    timer_->thread_ = Thread::Start("the ends of calls", [timer] { timer->Run(); }).value_or(Thread());
  }
  if (at_->first < timer_->awaited_) timer_->sooner_.Signal();
}

CallTimer::Alarm::~Alarm() {
  if (timer_ == nullptr) return;
  MutexLock lock(&timer_->mu_);
  timer_->alarms_.erase(at_);
}

CallTimer::~CallTimer() {
  Thread thread;
  {
    MutexLock lock(&mu_);
    stop_ = true;
    sooner_.Signal();
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

void CallTimer::Run() {
  MutexLock lock(&mu_);
  while (!stop_) {
    const absl::Time now = SteadyNow();
    awaited_ = absl::InfiniteFuture();
    for (auto& [when, on_late] : alarms_) {
      if (when > now) {
        awaited_ = when;
        break;
      }
      if (on_late != nullptr) std::exchange(on_late, nullptr)();
    }
    sooner_.WaitWithDeadline(&mu_, awaited_);
  }
}

}  // namespace berth::internal
