// TokenBucket: so many at once, and so many a second after that. Arithmetic only: the time comes in.

#ifndef DAEMON_SERVICE_TOKEN_BUCKET_H_
#define DAEMON_SERVICE_TOKEN_BUCKET_H_

#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"

namespace berth::service {

// How much may be taken: `burst` at once, and what comes back of it.
struct Rate {
  double per_second = 0;
  double burst = 0;
};

// Full at first. Thread-compatible.
class TokenBucket {
 public:
  explicit TokenBucket(Rate rate) : rate_(rate), tokens_(rate.burst) {}

  // Takes `tokens`, if there are so many. Returns whether there were; nothing is taken else. Time that goes back counts
  // as none.
  bool Take(absl::Time now, double tokens);
  // Takes as much of `tokens` as there is.
  void TakeUpTo(absl::Time now, double tokens);
  // What there is, as of the last call with a time.
  double left() const { return tokens_; }
  bool IsFull(absl::Time now);

 private:
  void Refill(absl::Time now);

  Rate rate_;
  double tokens_;
  absl::Time last_ = absl::InfinitePast();
};

// A bucket for each user. One that is full is forgotten, so that users who come and go leave nothing.
// Thread-compatible.
class UidBuckets {
 public:
  explicit UidBuckets(Rate rate) : rate_(rate) {}

  // The user's, full where it has none yet. Good until the next call.
  TokenBucket& Of(absl::Time now, uint32_t uid);

  size_t size() const { return buckets_.size(); }

 private:
  // Past so many the full ones are looked for, then past twice what is left.
  static constexpr size_t kKept = 256;

  const Rate rate_;
  size_t sweep_at_ = kKept;
  absl::flat_hash_map<uint32_t, TokenBucket> buckets_;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_TOKEN_BUCKET_H_
