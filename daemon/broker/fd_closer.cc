#include "daemon/broker/fd_closer.h"

#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/mutex.h"

namespace berth {

struct FdCloser::State {
  struct Closing {
    UniqueFd fd;
    std::function<void()> then;
  };
  // Closes what comes, until told to stop and nothing is left.
  void Run() ABSL_LOCKS_EXCLUDED(mu);
  // The next one to close; empty when there will be none.
  Closing Next() ABSL_LOCKS_EXCLUDED(mu);
  void Tell(const std::function<void()>& then) ABSL_LOCKS_EXCLUDED(mu);

  Mutex mu;
  CondVar changed;
  std::deque<Closing> queue ABSL_GUARDED_BY(mu);
  // The thread is at one.
  bool closing ABSL_GUARDED_BY(mu) = false;
  bool stopping ABSL_GUARDED_BY(mu) = false;
};

FdCloser::State::Closing FdCloser::State::Next() {
  MutexLock lock(&mu);
  closing = false;
  while (queue.empty() && !stopping) changed.WaitWithDeadline(&mu, absl::InfiniteFuture());
  if (queue.empty()) return {};
  Closing next = std::move(queue.front());
  queue.pop_front();
  closing = true;
  return next;
}

void FdCloser::State::Run() {
  for (Closing next = Next(); next.fd; next = Next()) {
    next.fd.reset();
    if (next.then) Tell(next.then);
  }
}

void FdCloser::State::Tell(const std::function<void()>& then) {
  // Who is told is there as long as the closer is.
  MutexLock lock(&mu);
  if (!stopping) then();
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

void FdCloser::Close(UniqueFd fd, std::function<void()> then) {
  if (!fd) return;
  MutexLock lock(&state_->mu);
  state_->queue.push_back({.fd = std::move(fd), .then = std::move(then)});
  state_->changed.Signal();
}

}  // namespace berth
