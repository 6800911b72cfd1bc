#include "client/cancellation.h"

#include <utility>

namespace berth {

Cancellation::Hook::Hook(Cancellation* cancellation, std::function<void()> on_cancel)
    : cancellation_(cancellation) {
  if (cancellation_ == nullptr) return;
  MutexLock lock(&cancellation_->mu_);
  if (cancellation_->cancelled_) on_cancel();
  at_ = cancellation_->hooks_.insert(cancellation_->hooks_.end(), std::move(on_cancel));
}

Cancellation::Hook::~Hook() {
  if (cancellation_ == nullptr) return;
  MutexLock lock(&cancellation_->mu_);
  cancellation_->hooks_.erase(at_);
}

void Cancellation::Cancel() {
  MutexLock lock(&mu_);
  if (std::exchange(cancelled_, true)) return;
  for (const std::function<void()>& hook : hooks_) hook();
}

bool Cancellation::cancelled() const {
  MutexLock lock(&mu_);
  return cancelled_;
}

}  // namespace berth
