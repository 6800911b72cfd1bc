#include "client/internal/settler.h"

#include <algorithm>
#include <utility>

namespace berth::internal {

void Settler::Stop() {
  std::thread thread;
  {
    MutexLock lock(&mu_);
    stop_ = true;
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

void Settler::Add(Debt debt) {
  MutexLock lock(&mu_);
  debts_.push_back(std::move(debt));
  if (!thread_.joinable() && !stop_) thread_ = std::thread([this] { Run(); });
}

bool Settler::Flush(absl::Duration patience) {
  MutexLock lock(&mu_);
  const auto settled = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return debts_.empty() && !working_; };
  ++flushers_;
  const bool done = mu_.AwaitWithTimeout(absl::Condition(&settled), patience);
  --flushers_;
  return done;
}

void Settler::FinishWith(std::function<void()> last) {
  MutexLock lock(&mu_);
  last_ = std::move(last);
  thread_.detach();
}

size_t Settler::owed() const {
  MutexLock lock(&mu_);
  return debts_.size() + (working_ ? 1 : 0);
}

bool Settler::Next(Debt* debt) {
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

void Settler::Done(Debt debt, bool settled) {
  MutexLock lock(&mu_);
  working_ = false;
  if (settled) {
    pause_ = kFirstPause;
    return;
  }
  debts_.push_back(std::move(debt));
  const auto hurried = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stop_ || flushers_ > 0; };
  if (mu_.AwaitWithTimeout(absl::Condition(&hurried), pause_)) {
    pause_ = kFirstPause;
    mu_.AwaitWithTimeout(absl::Condition(&stop_), pause_);
  } else {
    pause_ = std::min(pause_ * 2, kLastPause);
  }
}

void Settler::Run() {
  for (Debt debt; Next(&debt);) {
    const bool settled = debt();
    Done(std::move(debt), settled);
  }
}

}  // namespace berth::internal
