#include "client/sdk/transport/retry_queue.h"

#include <algorithm>
#include <utility>

namespace berth::internal {

void RetryQueue::Stop() {
  Thread thread;
  {
    MutexLock lock(&mu_);
    stop_ = true;
    changed_.SignalAll();
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

void RetryQueue::Add(Debt debt) {
  MutexLock lock(&mu_);
  debts_.push_back(std::move(debt));
  StartLocked();
}

void RetryQueue::StartLocked() {
  if (thread_.joinable() || stop_ || debts_.empty()) return;
  thread_ = Thread::Start("retries to the daemon", [this] { Run(); }).value_or(Thread());
}

bool RetryQueue::Flush(absl::Duration patience) {
  const absl::Time deadline = SteadyNow() + patience;
  MutexLock lock(&mu_);
  StartLocked();
  // Without a thread the debts do not change, so do not wait.
  if (!thread_.joinable()) return debts_.empty();
  ++flushers_;
  changed_.SignalAll();
  bool late = false;
  while ((!debts_.empty() || working_) && !late) late = changed_.WaitWithDeadline(&mu_, deadline);
  --flushers_;
  return debts_.empty() && !working_;
}

void RetryQueue::FinishWith(std::function<void()> last) {
  MutexLock lock(&mu_);
  last_ = std::move(last);
  StartLocked();
  if (thread_.joinable()) thread_.detach();
}

size_t RetryQueue::owed() const {
  MutexLock lock(&mu_);
  return debts_.size() + (working_ ? 1 : 0);
}

bool RetryQueue::Next(Debt* debt) {
  std::function<void()> last;
  {
    const auto wanted = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return stop_ || !debts_.empty() || last_ != nullptr;
    };
    MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&wanted));
    if (stop_) return false;
    if (!debts_.empty()) {
      *debt = std::move(debts_.front());
      debts_.pop_front();
      working_ = true;
      return true;
    }
    last = std::move(last_);
  }
  last();
  return false;
}

void RetryQueue::Done(Debt debt, bool settled) {
  MutexLock lock(&mu_);
  working_ = false;
  if (settled) {
    pause_ = kFirstPause;
    changed_.SignalAll();
    return;
  }
  debts_.push_back(std::move(debt));
  const absl::Time next = SteadyNow() + pause_;
  bool late = false;
  while (!stop_ && flushers_ == 0 && !late) late = changed_.WaitWithDeadline(&mu_, next);
  if (stop_ || flushers_ > 0) {
    pause_ = kFirstPause;
    const absl::Time soon = SteadyNow() + pause_;
    for (late = false; !stop_ && !late;) late = changed_.WaitWithDeadline(&mu_, soon);
  } else {
    pause_ = std::min(pause_ * 2, kLastPause);
  }
}

void RetryQueue::Run() {
  for (Debt debt; Next(&debt);) {
    const bool settled = debt();
    Done(std::move(debt), settled);
  }
}

}  // namespace berth::internal
