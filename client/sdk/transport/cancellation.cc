#include <berth/cancellation.h>

#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"

namespace berth {

struct Cancellation::State {
  Mutex mu;
  bool cancelled ABSL_GUARDED_BY(mu) = false;
  std::list<std::function<void()>> hooks ABSL_GUARDED_BY(mu);
};

Cancellation::Cancellation() : state_(std::make_unique<State>()) {}
Cancellation::~Cancellation() = default;

Cancellation::Hook::Hook(Cancellation* cancellation, std::function<void()> on_cancel)
    : cancellation_(cancellation) {
  if (cancellation_ == nullptr) return;
  State& state = *cancellation_->state_;
  MutexLock lock(&state.mu);
  if (state.cancelled) on_cancel();
  at_ = state.hooks.insert(state.hooks.end(), std::move(on_cancel));
}

Cancellation::Hook::~Hook() {
  if (cancellation_ == nullptr) return;
  State& state = *cancellation_->state_;
  MutexLock lock(&state.mu);
  state.hooks.erase(at_);
}

void Cancellation::Cancel() {
  State& state = *state_;
  MutexLock lock(&state.mu);
  if (std::exchange(state.cancelled, true)) return;
  for (const std::function<void()>& hook : state.hooks) hook();
}

bool Cancellation::cancelled() const {
  State& state = *state_;
  MutexLock lock(&state.mu);
  return state.cancelled;
}

}  // namespace berth
