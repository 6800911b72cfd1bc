#include "client/internal/host_stream.h"

#include <time.h>

#include <algorithm>
#include <utility>

namespace berth::internal {
namespace {

// Between two looks at a word: short at first, for what is about to come, then long enough to cost nothing.
constexpr int64_t kFirstPauseNanos = 10'000;
constexpr int64_t kLongestPauseNanos = 1'000'000;
constexpr int kLooksBeforePause = 1000;

}  // namespace

HostStream::HostStream(std::function<bool()> over) : over_(std::move(over)), thread_([this] { Run(); }) {}

HostStream::~HostStream() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

bool HostStream::AwaitWord(const FenceSlot& slot, uint64_t value) const {
  int64_t pause = kFirstPauseNanos;
  for (int looks = 0; slot.done.load(std::memory_order_acquire) < value; ++looks) {
    if (looks < kLooksBeforePause) continue;
    if (over_()) return false;
    const timespec nap = {.tv_sec = 0, .tv_nsec = pause};
    ::nanosleep(&nap, nullptr);
    pause = std::min(pause * 2, kLongestPauseNanos);
  }
  return true;
}

absl::Status HostStream::Wait(MappedPage& page, uint32_t slot, uint64_t value) {
  return Enqueue([this, &page, slot, value] {
    if (AwaitWord(page.slot(slot), value)) return;
    MutexLock lock(&mu_);
    broken_ = true;
  });
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
