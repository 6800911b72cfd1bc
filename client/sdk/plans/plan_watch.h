// PlanWatch: the daemon's unrequested notices about plans of this process: a plan no longer holds.

#ifndef CLIENT_SDK_PLANS_PLAN_WATCH_H_
#define CLIENT_SDK_PLANS_PLAN_WATCH_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include <berth/end_notice.h>

#include "absl/container/flat_hash_map.h"
#include "common/mutex.h"

namespace berth::internal {

// State of one plan.
struct PlanRecord {
  // The last revision that no longer holds; 0 for none. `why` (the wire's number) and `device` (the daemon's ordinal of
  // the device concerned) are written before it.
  std::atomic<uint64_t> stale_revision = 0;
  std::atomic<uint64_t> why = 0;
  std::atomic<uint64_t> device = 0;
  // Whether the plan's session, and with it the plan, has ended. `end` is written before it.
  std::atomic<bool> ended = false;
  EndNotice end;
  // May be empty. Called once for each stale revision and once at the end, on a thread of the SDK.
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
  // Limit of remembered notices about plans without a record in this process, or without one yet.
  static constexpr size_t kRemembered = 1'024;

  // Creates a record that receives the plan's notices, including those that arrived before the plan's own answer. The
  // watch forgets the record when its last owner releases it.
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
    if (all_ended_.has_value()) EndLocked(record, *all_ended_);
    return record;
  }

  void Notify(const PlanNews& news) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    early_.push_back(news);
    if (early_.size() > kRemembered) early_.pop_front();
    const auto at = records_.find(news.plan);
    if (at == records_.end()) return;
    if (const std::shared_ptr<PlanRecord> record = at->second.lock()) ApplyLocked(record, news);
  }

  // Ends every plan of this process, including those made later. Only the first call has an effect.
  void EndAll(const EndNotice& end) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    if (all_ended_.has_value()) return;
    all_ended_ = end;
    for (const auto& [plan, weak] : records_) {
      if (const std::shared_ptr<PlanRecord> record = weak.lock()) EndLocked(record, end);
    }
  }

  // Calls the callbacks of records with news. Requires: called on the thread that may run callbacks. Returns whether
  // there were any.
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

  void EndLocked(const std::shared_ptr<PlanRecord>& record, const EndNotice& end)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    record->end = end;
    record->ended.store(true, std::memory_order_release);
    if (record->on_stale) calls_.push_back(record);
  }

  mutable Mutex mu_;
  absl::flat_hash_map<uint64_t, std::weak_ptr<PlanRecord>> records_ ABSL_GUARDED_BY(mu_);
  size_t sweep_at_ ABSL_GUARDED_BY(mu_) = 64;
  std::deque<PlanNews> early_ ABSL_GUARDED_BY(mu_);
  std::optional<EndNotice> all_ended_ ABSL_GUARDED_BY(mu_);
  std::deque<std::shared_ptr<PlanRecord>> calls_ ABSL_GUARDED_BY(mu_);
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_PLANS_PLAN_WATCH_H_
