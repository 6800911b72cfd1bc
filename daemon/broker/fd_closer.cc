#include "daemon/broker/fd_closer.h"

#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/mutex.h"

namespace berth {

struct FdCloser::State {
  // Closes what comes, until told to stop and nothing is left.
  void Run() ABSL_LOCKS_EXCLUDED(mu);
  // The next one to close; empty when there will be none.
  UniqueFd Next() ABSL_LOCKS_EXCLUDED(mu);

  Mutex mu;
  CondVar changed;
  std::deque<UniqueFd> queue ABSL_GUARDED_BY(mu);
  // The thread is at one.
  bool closing ABSL_GUARDED_BY(mu) = false;
  bool stopping ABSL_GUARDED_BY(mu) = false;
};

UniqueFd FdCloser::State::Next() {
  MutexLock lock(&mu);
  closing = false;
  while (queue.empty() && !stopping) changed.WaitWithDeadline(&mu, absl::InfiniteFuture());
  if (queue.empty()) return UniqueFd();
  UniqueFd next = std::move(queue.front());
  queue.pop_front();
  closing = true;
  return next;
}

void FdCloser::State::Run() {
  while (UniqueFd fd = Next()) fd.reset();
}

FdCloser::FdCloser() : state_(std::make_shared<State>()), thread_([state = state_] { state->Run(); }) {}

FdCloser::~FdCloser() {
  bool idle;
  {
    MutexLock lock(&state_->mu);
    state_->stopping = true;
    idle = !state_->closing && state_->queue.empty();
    state_->changed.Signal();
  }
  if (idle) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void FdCloser::Close(UniqueFd fd) {
  if (!fd) return;
  MutexLock lock(&state_->mu);
  state_->queue.push_back(std::move(fd));
  state_->changed.Signal();
}

}  // namespace berth
