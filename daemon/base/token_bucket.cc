#include "daemon/base/token_bucket.h"

#include <algorithm>

namespace berth {

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

void TokenBucket::GiveBack(double tokens) { tokens_ = std::min(rate_.burst, tokens_ + tokens); }

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

}  // namespace berth
