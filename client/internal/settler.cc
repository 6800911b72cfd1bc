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

void Settler::Flush(absl::Duration patience) {
  MutexLock lock(&mu_);
  const auto settled = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return debts_.empty() && !working_; };
  mu_.AwaitWithTimeout(absl::Condition(&settled), patience);
}

size_t Settler::owed() const {
  MutexLock lock(&mu_);
  return debts_.size() + (working_ ? 1 : 0);
}

void Settler::Run() {
  absl::Duration pause = kFirstPause;
  const auto wanted = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stop_ || !debts_.empty(); };
  while (true) {
    Debt debt;
    {
      MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&wanted));
      if (stop_) return;
      debt = std::move(debts_.front());
      debts_.pop_front();
      working_ = true;
    }
    const bool settled = debt();
    MutexLock lock(&mu_);
    working_ = false;
    if (settled) {
      pause = kFirstPause;
      continue;
    }
    debts_.push_back(std::move(debt));
    mu_.AwaitWithTimeout(absl::Condition(&stop_), pause);
    pause = std::min(pause * 2, kLastPause);
  }
}

}  // namespace berth::internal
