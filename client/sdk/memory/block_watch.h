// BlockWatch: notifies the listeners of blocks in this process of the blocks' ends.

#ifndef CLIENT_SDK_MEMORY_BLOCK_WATCH_H_
#define CLIENT_SDK_MEMORY_BLOCK_WATCH_H_

#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <berth/block_event.h>

#include "client/sdk/memory/atomic_lease.h"
#include "common/mutex.h"

namespace berth::internal {

// Thread-safe.
class BlockWatch {
 public:
  // Creates a listener of the block's first event, which may have happened before. The watch forgets the listener when
  // its owner releases it.
  std::shared_ptr<BlockListener> Watch(LeaseRecord& lease, std::function<void(const BlockEvent&)> on_event)
      ABSL_LOCKS_EXCLUDED(mu_) {
    auto listener = std::make_shared<BlockListener>(BlockListener{.on_event = std::move(on_event)});
    MutexLock lock(&mu_);
    if (lease.event.has_value()) {
      calls_.emplace_back(listener, *lease.event);
    } else {
      std::erase_if(lease.listeners, [](const auto& weak) { return weak.expired(); });
      lease.listeners.push_back(listener);
    }
    return listener;
  }

  // Records an event of the block. Only the first event of a block has an effect.
  void Notify(LeaseRecord& lease, const BlockEvent& event) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    if (lease.event.has_value()) return;
    lease.event = event;
    for (std::weak_ptr<BlockListener>& listener : lease.listeners) calls_.emplace_back(std::move(listener), event);
    lease.listeners.clear();
  }

  // Calls the listeners that have an event. Requires: called on the thread that may run callbacks. Returns whether
  // there were any events.
  bool CallBack() ABSL_LOCKS_EXCLUDED(mu_) {
    std::deque<std::pair<std::weak_ptr<BlockListener>, BlockEvent>> calls;
    {
      MutexLock lock(&mu_);
      calls.swap(calls_);
    }
    for (const auto& [weak, event] : calls) {
      if (const std::shared_ptr<BlockListener> listener = weak.lock()) listener->on_event(event);
    }
    return !calls.empty();
  }

 private:
  // Also guards LeaseRecord::event and LeaseRecord::listeners.
  mutable Mutex mu_;
  std::deque<std::pair<std::weak_ptr<BlockListener>, BlockEvent>> calls_ ABSL_GUARDED_BY(mu_);
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_MEMORY_BLOCK_WATCH_H_
