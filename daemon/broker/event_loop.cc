#include "daemon/broker/event_loop.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <utility>

#include "common/os/os_error.h"
#include "common/status_macros.h"
#include "daemon/broker/node_clock.h"

namespace berth {
namespace {

constexpr EventLoop::WatchId kTimer = 1;
constexpr EventLoop::WatchId kWake = 2;
// Serves a burst with few system calls, without making any fd wait long for its turn.
constexpr int kEventsPerWait = 64;

}  // namespace

absl::Time EventLoop::SteadyNow() { return NodeClock::Real().Now(); }

absl::StatusOr<std::unique_ptr<EventLoop>> EventLoop::Create() {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return OsError("epoll_create1", errno);
  UniqueFd timer(::timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer) return OsError("timerfd_create", errno);
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return OsError("eventfd", errno);
  std::unique_ptr<EventLoop> loop(new EventLoop(std::move(epoll), std::move(timer), std::move(wake)));
  BERTH_RETURN_IF_ERROR(loop->Add(loop->timer_.get(), EPOLLIN, kTimer));
  BERTH_RETURN_IF_ERROR(loop->Add(loop->wake_.get(), EPOLLIN, kWake));
  return loop;
}

absl::Status EventLoop::Add(int fd, uint32_t events, WatchId id) {
  epoll_event event = {.events = events, .data = {.u64 = id}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) < 0) return OsError("epoll_ctl(ADD)", errno);
  return absl::OkStatus();
}

absl::StatusOr<EventLoop::WatchId> EventLoop::Watch(int fd, uint32_t events, Callback callback) {
  MutexLock lock(&mu_);
  const WatchId id = next_id_++;
  BERTH_RETURN_IF_ERROR(Add(fd, events, id));
  watched_[id] = Watched{fd, std::make_shared<Callback>(std::move(callback))};
  return id;
}

void EventLoop::Rewatch(WatchId id, uint32_t events) {
  MutexLock lock(&mu_);
  const auto it = watched_.find(id);
  if (it == watched_.end()) return;
  epoll_event event = {.events = events, .data = {.u64 = id}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, it->second.fd, &event);
}

void EventLoop::Unwatch(WatchId id) {
  // The callback's destructor may use the loop, so it runs after the lock is released.
  Watched watched;
  MutexLock lock(&mu_);
  const auto it = watched_.find(id);
  if (it == watched_.end()) return;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, it->second.fd, nullptr);
  watched = std::move(it->second);
  watched_.erase(it);
}

void EventLoop::ArmTimer(absl::Time when) {
  itimerspec spec = {};
  if (when != absl::InfiniteFuture()) {
    // Zero would disarm the timer; a time that has passed fires at once.
    const absl::Duration wait = std::max(when - SteadyNow(), absl::Nanoseconds(1));
    spec.it_value = absl::ToTimespec(wait);
  }
  ::timerfd_settime(timer_.get(), 0, &spec, nullptr);
}

void EventLoop::Dispatch(WatchId id, uint32_t events) {
  std::shared_ptr<Callback> callback;
  {
    MutexLock lock(&mu_);
    const auto it = watched_.find(id);
    if (it == watched_.end()) return;
    callback = it->second.callback;
  }
  (*callback)(events);
}

void EventLoop::Run() {
  epoll_event events[kEventsPerWait];
  while (!stopping_.load(std::memory_order_acquire)) {
    const int count = ::epoll_wait(epoll_.get(), events, kEventsPerWait, -1);
    for (int i = 0; i < count; ++i) {
      const WatchId id = events[i].data.u64;
      if (id == kTimer) {
        uint64_t expirations;
        if (::read(timer_.get(), &expirations, sizeof(expirations)) > 0) timer_callback_();
      } else if (id == kWake) {
        uint64_t wakes;
        if (::read(wake_.get(), &wakes, sizeof(wakes)) > 0 && wake_callback_) wake_callback_();
      } else {
        Dispatch(id, events[i].events);
      }
    }
  }
}

void EventLoop::Stop() {
  stopping_.store(true, std::memory_order_release);
  Wake();
}

void EventLoop::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
}

}  // namespace berth
