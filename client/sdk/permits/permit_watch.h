// PermitWatch: the daemon's unrequested notices about permits of this process: a permit is held for longer than its
// pool's warning time, or has ended.

#ifndef CLIENT_SDK_PERMITS_PERMIT_WATCH_H_
#define CLIENT_SDK_PERMITS_PERMIT_WATCH_H_

#include <string.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <berth/end_notice.h>
#include <berth/permit_event.h>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/mutex.h"

namespace berth {

namespace internal {

// Names the payload of ReleasedAfter(): an EndNotice in memory representation.
inline constexpr char kEndNoticeUrl[] = "berth/end_notice";

// State of one guard's permit.
struct PermitRecord {
  std::atomic<bool> overdue = false;
  std::atomic<bool> ended = false;
  // Written before `ended`.
  EndNotice end;
  // May be empty. Called once per event, on a thread of the SDK.
  std::function<void(const PermitEvent&)> on_event;

  // Reason why the permit ended; nullopt while it counts.
  std::optional<EndNotice> ended_by() const {
    return ended.load(std::memory_order_acquire) ? std::optional(end) : std::nullopt;
  }
};

// The error of a release that came after the end of its permit.
inline absl::Status ReleasedAfter(const EndNotice& end) {
  absl::Status status = absl::AbortedError(absl::StrCat("the permit ended before its release: ", Describe(end)));
  status.SetPayload(kEndNoticeUrl, absl::Cord(absl::string_view(reinterpret_cast<const char*>(&end), sizeof(end))));
  return status;
}
// Returns the end of the permit from such an error; nullopt for any other status.
inline std::optional<EndNotice> EndOf(const absl::Status& status) {
  const auto bytes = status.GetPayload(kEndNoticeUrl);
  if (!bytes.has_value()) return std::nullopt;
  EndNotice end;
  memcpy(&end, std::string(*bytes).data(), sizeof(end));
  return end;
}

// Thread-safe.
class PermitWatch {
 public:
  // Limit of remembered events of permits without a record in this process, or without one yet.
  static constexpr size_t kRemembered = 1'024;

  // Creates a record that receives the permit's events, including those that arrived before the grant's own answer. The
  // watch forgets the record when its last owner releases it.
  std::shared_ptr<PermitRecord> Watch(uint64_t permit, std::function<void(const PermitEvent&)> on_event)
      ABSL_LOCKS_EXCLUDED(mu_) {
    auto record = std::make_shared<PermitRecord>();
    record->on_event = std::move(on_event);
    MutexLock lock(&mu_);
    records_[permit].push_back(record);
    for (const auto& [notified, event] : early_) {
      if (notified == permit) ApplyLocked(record, event);
    }
    if (all_ended_.has_value()) ApplyLocked(record, *all_ended_);
    if (records_.size() >= sweep_at_) SweepLocked();
    return record;
  }

  void Notify(uint64_t permit, const PermitEvent& event) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    early_.emplace_back(permit, event);
    if (early_.size() > kRemembered) early_.pop_front();
    const auto at = records_.find(permit);
    if (at == records_.end()) return;
    ApplyLocked(at->second, event);
    if (event.what == PermitEvent::kEnded) records_.erase(at);
  }

  // Ends every permit of this process, including those granted later. Only the first call has an effect.
  void EndAll(const EndNotice& end) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    if (all_ended_.has_value()) return;
    all_ended_ = {.what = PermitEvent::kEnded, .end = end};
    for (const auto& [permit, records] : records_) ApplyLocked(records, *all_ended_);
    records_.clear();
  }

  // Calls the callbacks of records with new events. Requires: called on the thread that may run callbacks. Returns
  // whether there were any.
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
  using Records = std::vector<std::weak_ptr<PermitRecord>>;

  void ApplyLocked(const Records& records, const PermitEvent& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (const std::weak_ptr<PermitRecord>& weak : records) {
      if (const std::shared_ptr<PermitRecord> record = weak.lock()) ApplyLocked(record, event);
    }
  }

  void ApplyLocked(const std::shared_ptr<PermitRecord>& record, const PermitEvent& event)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const bool ends = event.what == PermitEvent::kEnded;
    std::atomic<bool>& flag = ends ? record->ended : record->overdue;
    if (flag.load(std::memory_order_relaxed)) return;
    if (ends) record->end = event.end;
    flag.store(true, std::memory_order_release);
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
  absl::flat_hash_map<uint64_t, Records> records_ ABSL_GUARDED_BY(mu_);
  size_t sweep_at_ ABSL_GUARDED_BY(mu_) = 64;
  std::deque<std::pair<uint64_t, PermitEvent>> early_ ABSL_GUARDED_BY(mu_);
  std::optional<PermitEvent> all_ended_ ABSL_GUARDED_BY(mu_);
  std::deque<std::pair<std::shared_ptr<PermitRecord>, PermitEvent>> calls_ ABSL_GUARDED_BY(mu_);
};

}  // namespace internal
}  // namespace berth

#endif  // CLIENT_SDK_PERMITS_PERMIT_WATCH_H_
