// Limits on clients: rates, the accept gate, and quotas of users.

#include <algorithm>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "daemon/core/types/user_share.h"
#include "daemon/service/limits/accept_gate.h"
#include "daemon/service/limits/token_bucket.h"
#include "daemon/service/limits/uid_quota.h"

namespace berth::service {

// ---- accept_gate.h -------------------------------------------------------------------------------------------

absl::Status AcceptGate::Admit(uint32_t uid, absl::Time now) {
  MutexLock lock(&mu_);
  const bool uid_has_capacity = of_uid_.Of(now, uid).Take(now, 1);
  if (uid_has_capacity && total_.Take(now, 1)) return absl::OkStatus();
  ++refused_;
  const Rate& rate = uid_has_capacity ? rates_.total : rates_.per_uid;
  return RefuseWithRetry(Reason::kLimit, kPause, "{what}: limit {limit} at once and {per_second} a second",
                         {{"what", uid_has_capacity ? "new connections" : absl::StrCat("new connections of uid ", uid)},
                          {"limit", rate.burst},
                          {"per_second", rate.per_second}});
}

void AcceptGate::Punish(uint32_t uid, absl::Time now) {
  MutexLock lock(&mu_);
  of_uid_.Of(now, uid).TakeUpTo(now, kPenalty);
}

uint64_t AcceptGate::refused_total() const {
  MutexLock lock(&mu_);
  return refused_;
}

// ---- token_bucket.h ------------------------------------------------------------------------------------------

void TokenBucket::Refill(absl::Time now) {
  if (now <= last_) return;
  if (last_ != absl::InfinitePast()) {
    tokens_ = std::min(rate_.burst, tokens_ + absl::ToDoubleSeconds(now - last_) * rate_.per_second);
  }
  last_ = now;
}

bool TokenBucket::Take(absl::Time now, double tokens) {
  Refill(now);
  if (tokens_ < tokens) return false;
  tokens_ -= tokens;
  return true;
}

void TokenBucket::TakeUpTo(absl::Time now, double tokens) {
  Refill(now);
  tokens_ -= std::min(tokens_, tokens);
}

bool TokenBucket::IsFull(absl::Time now) {
  Refill(now);
  return tokens_ >= rate_.burst;
}

TokenBucket& UidBuckets::Of(absl::Time now, uint32_t uid) {
  if (const auto found = buckets_.find(uid); found != buckets_.end()) return found->second;
  if (buckets_.size() >= sweep_at_) {
    absl::erase_if(buckets_, [now](auto& bucket) { return bucket.second.IsFull(now); });
    sweep_at_ = std::max(kLeastSweep, 2 * buckets_.size());
  }
  return buckets_.emplace(uid, TokenBucket(rate_)).first->second;
}

// ---- uid_quota.h ---------------------------------------------------------------------------------------------

absl::StatusOr<UidQuota::Place> UidQuota::Take(uint32_t uid) {
  MutexLock lock(&mu_);
  const auto found = taken_.find(uid);
  const uint32_t current = found == taken_.end() ? 0 : found->second;
  const uint64_t limit = std::min<uint64_t>(limit_, core::UserShare(total_, sum_ - current));
  if (current >= limit) {
    return Refuse(Reason::kLimit, "{what}: {current}, limit {limit}",
                  {{"what", absl::StrCat(what_, " of uid ", uid)}, {"current", current}, {"limit", limit}});
  }
  ++taken_[uid];
  ++sum_;
  return Place(this, uid);
}

UidQuota::Place UidQuota::TakeAnyway(uint32_t uid) {
  MutexLock lock(&mu_);
  ++taken_[uid];
  ++sum_;
  return Place(this, uid);
}

void UidQuota::GiveBack(uint32_t uid) {
  MutexLock lock(&mu_);
  const auto it = taken_.find(uid);
  if (--it->second == 0) taken_.erase(it);
  --sum_;
}

}  // namespace berth::service
