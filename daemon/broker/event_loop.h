// EventLoop: one thread that waits for fds and one timer. All work of the broker that is not a gRPC call happens on it:
// connections, lifelines, channels, process ends, workers, the supervisor, deadlines.

#ifndef DAEMON_BROKER_EVENT_LOOP_H_
#define DAEMON_BROKER_EVENT_LOOP_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/os/unique_fd.h"
#include "daemon/broker/fd_closer.h"

namespace berth {

// Thread-safe, except Run(), which has one caller. Callbacks run on the thread in Run(), one at a time, and may watch
// and unwatch, including their own watch. The loop owns no fd that it watches.
class EventLoop {
 public:
  // Names one Watch(). Ids are never reused, so an event already fetched for a closed fd finds no callback.
  using WatchId = uint64_t;
  // `events` are epoll's.
  using Callback = std::function<void(uint32_t events)>;

  // Errors: kResourceExhausted at the fd limit.
  static absl::StatusOr<std::unique_ptr<EventLoop>> Create();

  // Calls `callback` whenever one of `events` (EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLONESHOT…) holds on `fd`, until
  // Unwatch(). Level-triggered. Unwatch before closing `fd`.
  absl::StatusOr<WatchId> Watch(int fd, uint32_t events, Callback callback);
  // Replaces the events of a watch.
  void Rewatch(WatchId id, uint32_t events);
  // After this returns on the loop's thread, the callback is not called again. Unknown ids are ignored.
  void Unwatch(WatchId id);

  // Closes `fd` without making the caller wait, for connections of clients and fds that clients sent. Calls `then`
  // after the close, on another thread; `then` may use the loop, except Close().
  void Close(UniqueFd fd, std::function<void()> then = nullptr) { closer_.Close(std::move(fd), std::move(then)); }

  // Sets the callback that the loop's thread calls once the time given to ArmTimer() (of SteadyNow()) has come. A later
  // ArmTimer() moves the timer.
  void SetTimerCallback(std::function<void()> callback) { timer_callback_ = std::move(callback); }
  void ArmTimer(absl::Time when);

  // Sets the callback that the loop's thread calls after each Wake(); several calls of Wake() may be merged.
  void SetWakeCallback(std::function<void()> callback) { wake_callback_ = std::move(callback); }
  void Wake();

  // Runs until Stop().
  void Run();
  void Stop();

  // Returns the time of NodeClock::Real().
  static absl::Time SteadyNow();

 private:
  struct Watched {
    int fd = -1;
    std::shared_ptr<Callback> callback;
  };

  EventLoop(UniqueFd epoll, UniqueFd timer, UniqueFd wake)
      : epoll_(std::move(epoll)), timer_(std::move(timer)), wake_(std::move(wake)) {}
  absl::Status Add(int fd, uint32_t events, WatchId id);
  void Dispatch(WatchId id, uint32_t events);

  // Constant after construction.
  const UniqueFd epoll_;
  const UniqueFd timer_;
  const UniqueFd wake_;
  std::function<void()> timer_callback_;
  std::function<void()> wake_callback_;

  // Synchronised by itself.
  std::atomic<bool> stopping_{false};

  // Guarded by mu_.
  Mutex mu_;
  WatchId next_id_ ABSL_GUARDED_BY(mu_) = 16;
  absl::flat_hash_map<WatchId, Watched> watched_ ABSL_GUARDED_BY(mu_);

  // Last member: its callbacks use the members above.
  FdCloser closer_;
};

}  // namespace berth

#endif  // DAEMON_BROKER_EVENT_LOOP_H_
