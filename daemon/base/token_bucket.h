// TokenBucket: limits events to a burst and a rate per second. Pure arithmetic: the caller passes the time.

#ifndef DAEMON_BASE_TOKEN_BUCKET_H_
#define DAEMON_BASE_TOKEN_BUCKET_H_

#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"

namespace berth {

// Limit: `burst` tokens at once, refilled at `per_second`.
struct Rate {
  double per_second = 0;
  double burst = 0;
};

// Initially full. Thread-compatible.
class TokenBucket {
 public:
  explicit TokenBucket(Rate rate) : rate_(rate), tokens_(rate.burst) {}

  // Takes `tokens` if that many are left. Returns whether it took them; otherwise takes nothing. Time that goes back
  // counts as zero.
  bool Take(absl::Time now, double tokens);
  // Takes as many of `tokens` as are left.
  void TakeUpTo(absl::Time now, double tokens);
  // Returns tokens that were taken.
  void GiveBack(double tokens);
  // Returns the tokens left at the last call with a time.
  double left() const { return tokens_; }
  bool IsFull(absl::Time now);

 private:
  void Refill(absl::Time now);

  Rate rate_;
  double tokens_;
  absl::Time last_ = absl::InfinitePast();
};

// One bucket for each user. Full buckets are dropped, so that former users leave nothing behind. Thread-compatible.
class UidBuckets {
 public:
  explicit UidBuckets(Rate rate) : rate_(rate) {}

  // Returns the user's bucket, a full one if new. Valid until the next call.
  TokenBucket& Of(absl::Time now, uint32_t uid);

  size_t size() const { return buckets_.size(); }

 private:
  // Past this size full buckets are dropped; the next sweep follows at twice the remaining size.
  static constexpr size_t kLeastSweep = 256;

  const Rate rate_;
  size_t sweep_at_ = kLeastSweep;
  absl::flat_hash_map<uint32_t, TokenBucket> buckets_;
};

}  // namespace berth

#endif  // DAEMON_BASE_TOKEN_BUCKET_H_
