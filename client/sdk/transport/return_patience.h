// ReturnPatience: how long this process waits for the daemon's answer when it returns what it holds.
//
// Each release has its own deadline. A process that ends returns all that it holds in a row, and these last returns
// share one deadline. An absent daemon thus delays the end by one wait instead of several.
#ifndef CLIENT_SDK_TRANSPORT_RETURN_PATIENCE_H_
#define CLIENT_SDK_TRANSPORT_RETURN_PATIENCE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>

#include "absl/time/time.h"

namespace berth::internal {

// Thread-safe.
class ReturnPatience {
 public:
  explicit ReturnPatience(absl::Duration each) : each_(each) {}

  // Begins the last returns at `now`. A second call changes nothing.
  void BeginLast(absl::Time now) {
    int64_t none = kNever;
    last_.compare_exchange_strong(none, absl::ToUnixNanos(now + each_));
  }
  // Returns the deadline of a release that begins at `now`.
  absl::Time Deadline(absl::Time now) const { return Bound(now + each_); }
  // Returns `deadline`, or the end of the last returns if that is earlier.
  absl::Time Bound(absl::Time deadline) const { return std::min(deadline, Last()); }

 private:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  absl::Time Last() const {
    const int64_t last = last_;
    return last == kNever ? absl::InfiniteFuture() : absl::FromUnixNanos(last);
  }

  const absl::Duration each_;
  // Deadline of the last returns, in nanoseconds since 1970; kNever until they begin.
  std::atomic<int64_t> last_ = kNever;
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_TRANSPORT_RETURN_PATIENCE_H_
