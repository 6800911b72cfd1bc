#include "daemon/broker/fd_closer.h"

#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"
#include "daemon/broker/needed_thread.h"

namespace berth {

struct FdCloser::State {
  struct Closing {
    UniqueFd fd;
    std::function<void()> then;
  };
  // Closes queued fds until `stopping` is set and the queue is empty.
  void Run() ABSL_LOCKS_EXCLUDED(mu);
  // Returns the next fd to close; empty if there will be none.
  Closing Next() ABSL_LOCKS_EXCLUDED(mu);
  void Notify(const std::function<void()>& then) ABSL_LOCKS_EXCLUDED(mu);

  Mutex mu;
  CondVar changed;
  std::deque<Closing> queue ABSL_GUARDED_BY(mu);
  // The thread is in a close.
  bool closing ABSL_GUARDED_BY(mu) = false;
  bool stopping ABSL_GUARDED_BY(mu) = false;
};

FdCloser::State::Closing FdCloser::State::Next() {
  MutexLock lock(&mu);
  closing = false;
  while (queue.empty() && !stopping) changed.Wait(&mu);
  if (queue.empty()) return {};
  Closing next = std::move(queue.front());
  queue.pop_front();
  closing = true;
  return next;
}

void FdCloser::State::Run() {
  for (Closing next = Next(); next.fd; next = Next()) {
    next.fd.reset();
    if (next.then) Notify(next.then);
  }
}

void FdCloser::State::Notify(const std::function<void()>& then) {
  // The callback's target lives at least as long as the closer.
  MutexLock lock(&mu);
  if (!stopping) then();
}

FdCloser::FdCloser()
    : state_(std::make_shared<State>()), thread_(NeededThread("closing", [state = state_] { state->Run(); })) {}

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
