// PlanWatch: what the daemon says of plans that this process has, unasked: that one does not hold any more.

#ifndef CLIENT_INTERNAL_PLAN_WATCH_H_
#define CLIENT_INTERNAL_PLAN_WATCH_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/mutex.h"

namespace berth::internal {

// Of one plan.
struct PlanRecord {
  // The last revision that does not hold; 0 for none. Why, by the wire's number, and the daemon's ordinal of the device
  // that it is about, are there before it.
  std::atomic<uint64_t> stale_revision = 0;
  std::atomic<uint64_t> why = 0;
  std::atomic<uint64_t> device = 0;
  // May be empty. Once for each revision, on a thread of the SDK's.
  std::function<void()> on_stale;
};

struct PlanNews {
  uint64_t plan = 0;
  uint64_t revision = 0;
  uint64_t why = 0;
  uint64_t device = 0;
};

// Thread-safe.
class PlanWatch {
 public:
  // News of plans that nobody here has, or not yet: as many are remembered.
  static constexpr size_t kRemembered = 1'024;

  // From now on the record has the plan's news, those that came before the plan's own answer included. It is forgotten
  // with its last owner.
  std::shared_ptr<PlanRecord> Watch(uint64_t plan, std::function<void()> on_stale) ABSL_LOCKS_EXCLUDED(mu_) {
    auto record = std::make_shared<PlanRecord>();
    record->on_stale = std::move(on_stale);
    MutexLock lock(&mu_);
    if (records_.size() >= sweep_at_) {
      absl::erase_if(records_, [](const auto& entry) { return entry.second.expired(); });
      sweep_at_ = 2 * records_.size() + 64;
    }
    records_[plan] = record;
    for (const PlanNews& news : early_) {
      if (news.plan == plan) ApplyLocked(record, news);
    }
    return record;
  }

  void Tell(const PlanNews& news) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    early_.push_back(news);
    if (early_.size() > kRemembered) early_.pop_front();
    const auto at = records_.find(news.plan);
    if (at == records_.end()) return;
    if (const std::shared_ptr<PlanRecord> record = at->second.lock()) ApplyLocked(record, news);
  }

  // Calls whom there is something to tell; on the thread that may. Returns whether there was anybody.
  bool CallBack() ABSL_LOCKS_EXCLUDED(mu_) {
    std::deque<std::shared_ptr<PlanRecord>> calls;
    {
      MutexLock lock(&mu_);
      calls.swap(calls_);
    }
    for (const std::shared_ptr<PlanRecord>& record : calls) record->on_stale();
    return !calls.empty();
  }

 private:
  void ApplyLocked(const std::shared_ptr<PlanRecord>& record, const PlanNews& news)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (record->stale_revision.load(std::memory_order_relaxed) >= news.revision) return;
    record->why.store(news.why, std::memory_order_relaxed);
    record->device.store(news.device, std::memory_order_relaxed);
    record->stale_revision.store(news.revision, std::memory_order_release);
    if (record->on_stale) calls_.push_back(record);
  }

  mutable Mutex mu_;
  absl::flat_hash_map<uint64_t, std::weak_ptr<PlanRecord>> records_ ABSL_GUARDED_BY(mu_);
  size_t sweep_at_ ABSL_GUARDED_BY(mu_) = 64;
  std::deque<PlanNews> early_ ABSL_GUARDED_BY(mu_);
  std::deque<std::shared_ptr<PlanRecord>> calls_ ABSL_GUARDED_BY(mu_);
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_PLAN_WATCH_H_
