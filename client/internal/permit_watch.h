// PermitWatch: what the daemon says of permits that this process has, unasked: that one is held for longer than its
// pool would have it, or was taken away.

#ifndef CLIENT_INTERNAL_PERMIT_WATCH_H_
#define CLIENT_INTERNAL_PERMIT_WATCH_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/mutex.h"

namespace berth {

// What becomes of a permit while it is held.
enum class PermitEvent {
  // Held for longer than the pool's warning. It counts on.
  kOverdue = 1,
  // Taken away, by an operator or at the pool's limit: it counts no more, and its units may be somebody else's.
  kRevoked = 2,
};

namespace internal {

// Of one guard's permit.
struct PermitRecord {
  std::atomic<bool> overdue = false;
  std::atomic<bool> revoked = false;
  // May be empty. Each event once, on a thread of the SDK's.
  std::function<void(PermitEvent)> on_event;
};

// Thread-safe.
class PermitWatch {
 public:
  // Words on permits that nobody here has, or not yet: as many are remembered.
  static constexpr size_t kRemembered = 1'024;

  // From now on the record is told of the permit's events, those that came before the permit's own answer included.
  // It is forgotten with its last owner.
  std::shared_ptr<PermitRecord> Watch(uint64_t permit, std::function<void(PermitEvent)> on_event)
      ABSL_LOCKS_EXCLUDED(mu_) {
    auto record = std::make_shared<PermitRecord>();
    record->on_event = std::move(on_event);
    MutexLock lock(&mu_);
    records_[permit].push_back(record);
    for (const auto& [told, event] : early_) {
      if (told == permit) ApplyLocked(record, event);
    }
    if (records_.size() >= sweep_at_) SweepLocked();
    return record;
  }

  void Tell(uint64_t permit, PermitEvent event) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    early_.emplace_back(permit, event);
    if (early_.size() > kRemembered) early_.pop_front();
    const auto at = records_.find(permit);
    if (at == records_.end()) return;
    for (const std::weak_ptr<PermitRecord>& weak : at->second) {
      if (const std::shared_ptr<PermitRecord> record = weak.lock()) ApplyLocked(record, event);
    }
    if (event == PermitEvent::kRevoked) records_.erase(at);
  }

  // Calls whom there is something to tell; on the thread that may. Returns whether there was anybody.
  bool CallBack() ABSL_LOCKS_EXCLUDED(mu_) {
    std::deque<std::pair<std::shared_ptr<PermitRecord>, PermitEvent>> calls;
    {
      MutexLock lock(&mu_);
      calls.swap(calls_);
    }
    for (const auto& [record, event] : calls) record->on_event(event);
    return !calls.empty();
  }

 private:
  void ApplyLocked(const std::shared_ptr<PermitRecord>& record, PermitEvent event)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::atomic<bool>& word = event == PermitEvent::kRevoked ? record->revoked : record->overdue;
    if (word.exchange(true, std::memory_order_release)) return;
    if (record->on_event) calls_.emplace_back(record, event);
  }

  void SweepLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (auto it = records_.begin(); it != records_.end();) {
      std::erase_if(it->second, [](const auto& weak) { return weak.expired(); });
      const auto at = it++;
      if (at->second.empty()) records_.erase(at);
    }
    sweep_at_ = 2 * records_.size() + 64;
  }

  mutable Mutex mu_;
  absl::flat_hash_map<uint64_t, std::vector<std::weak_ptr<PermitRecord>>> records_ ABSL_GUARDED_BY(mu_);
  size_t sweep_at_ ABSL_GUARDED_BY(mu_) = 64;
  std::deque<std::pair<uint64_t, PermitEvent>> early_ ABSL_GUARDED_BY(mu_);
  std::deque<std::pair<std::shared_ptr<PermitRecord>, PermitEvent>> calls_ ABSL_GUARDED_BY(mu_);
};

}  // namespace internal
}  // namespace berth

#endif  // CLIENT_INTERNAL_PERMIT_WATCH_H_
