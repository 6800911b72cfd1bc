#include "client/sdk/fences/host_stream.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "common/status_macros.h"

namespace berth::internal {
namespace {

// Pauses between two polls of a fence value: short at first, for values about to be reached, then long enough to cost
// nothing.
constexpr int64_t kFirstPauseNanos = 10'000;
constexpr int64_t kLongestPauseNanos = 1'000'000;
constexpr int kLooksBeforePause = 1000;

// State of an event. Shared with the functions that record it, which may run after the event is destroyed.
struct Places {
  Mutex mu;
  // Number of records so far, and number of records that the stream has passed.
  uint64_t recorded ABSL_GUARDED_BY(mu) = 0;
  uint64_t reached ABSL_GUARDED_BY(mu) = 0;
  // Fence values that become visible when a place is reached.
  struct Publication {
    uint64_t place;
    std::atomic<uint64_t>* target;
    uint64_t value;
  };
  std::vector<Publication> publications ABSL_GUARDED_BY(mu);

  uint64_t Record() {
    MutexLock lock(&mu);
    return ++recorded;
  }
  uint64_t Last() {
    MutexLock lock(&mu);
    return recorded;
  }
  bool IsPast(uint64_t place) {
    MutexLock lock(&mu);
    return reached >= place;
  }
  void Reach(uint64_t place) {
    MutexLock lock(&mu);
    reached = place;
    Store();
  }
  void Publish(std::atomic<uint64_t>* target, uint64_t value) {
    MutexLock lock(&mu);
    publications.push_back({.place = recorded, .target = target, .value = value});
    Store();
  }
  void Store() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    for (const Publication& each : publications) {
      if (reached >= each.place) each.target->store(each.value, std::memory_order_release);
    }
    const uint64_t past = reached;
    std::erase_if(publications, [past](const Publication& each) { return past >= each.place; });
  }
};

struct HostEvent final : StreamEvent {
  const std::shared_ptr<Places> places = std::make_shared<Places>();
};

const std::shared_ptr<Places>& PlacesOf(StreamEvent& event) { return static_cast<HostEvent&>(event).places; }

}  // namespace

HostStream::HostStream(std::function<bool()> over)
    : StreamBackend(StreamKind::kHost), over_(std::move(over)) {}

absl::StatusOr<std::unique_ptr<HostStream>> HostStream::Start(std::function<bool()> over) {
  std::unique_ptr<HostStream> stream(new HostStream(std::move(over)));
  BERTH_ASSIGN_OR_RETURN(stream->thread_, Thread::Start("a host stream", [raw = stream.get()] { raw->Run(); }));
  return stream;
}

HostStream::~HostStream() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

bool HostStream::Await(absl::FunctionRef<bool()> there) const {
  int64_t pause = kFirstPauseNanos;
  for (int looks = 0; !there(); ++looks) {
    if (looks < kLooksBeforePause) continue;
    if (over_()) return false;
    const timespec nap = {.tv_sec = 0, .tv_nsec = pause};
    ::nanosleep(&nap, nullptr);
    pause = std::min(pause * 2, kLongestPauseNanos);
  }
  return true;
}

absl::Status HostStream::EnqueueWait(std::function<bool()> there) {
  return Enqueue([this, there = std::move(there)] {
    if (Await(there)) return;
    MutexLock lock(&mu_);
    broken_ = true;
  });
}

absl::StatusOr<std::unique_ptr<StreamEvent>> HostStream::CreateEvent() {
  return std::make_unique<HostEvent>();
}

absl::Status HostStream::Record(StreamEvent& event) {
  const std::shared_ptr<Places>& places = PlacesOf(event);
  return Enqueue([places, place = places->Record()] { places->Reach(place); });
}

absl::Status HostStream::WaitEvent(StreamEvent& event) {
  const std::shared_ptr<Places>& places = PlacesOf(event);
  return EnqueueWait([places, place = places->Last()] { return places->IsPast(place); });
}

absl::StatusOr<bool> HostStream::Reached(StreamEvent& event) {
  Places& places = *PlacesOf(event);
  return places.IsPast(places.Last());
}

absl::Status HostStream::Publish(StreamEvent& event, MappedPage& page, uint32_t slot, uint64_t value) {
  PlacesOf(event)->Publish(&page.page().writable_slot(slot).done, value);
  return absl::OkStatus();
}

absl::Status HostStream::Wait(MappedPage& page, uint32_t slot, uint64_t value) {
  return EnqueueWait(
      [&page, slot, value] { return page.slot(slot).done.load(std::memory_order_acquire) >= value; });
}

absl::Status HostStream::Write(MappedPage& page, uint32_t slot, uint64_t value) {
  return Enqueue(
      [&page, slot, value] { page.page().writable_slot(slot).done.store(value, std::memory_order_release); });
}

absl::Status HostStream::Enqueue(std::function<void()> work) {
  MutexLock lock(&mu_);
  if (broken_) return absl::UnavailableError("the stream's session is over");
  queue_.push_back(std::move(work));
  changed_.SignalAll();
  return absl::OkStatus();
}

absl::Status HostStream::Synchronize() {
  MutexLock lock(&mu_);
  while (!broken_ && (running_ || !queue_.empty())) changed_.Wait(&mu_);
  return broken_ ? absl::UnavailableError("the stream's session is over") : absl::OkStatus();
}

void HostStream::Run() {
  while (true) {
    std::function<void()> work;
    {
      MutexLock lock(&mu_);
      running_ = false;
      changed_.SignalAll();
      while (!broken_ && !stop_ && queue_.empty()) changed_.Wait(&mu_);
      if (broken_) queue_.clear();
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
      running_ = true;
    }
    work();
  }
}

}  // namespace berth::internal
