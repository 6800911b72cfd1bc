// OpenRequests numbers the mutating requests of one channel and tracks the open requests, so that the daemon knows
// which cached answers it may drop.
//
// A request is open from Begin() until its outcome is settled. The outcome is settled by an answer that is OK or a
// definite refusal, or by the daemon's answer to a ForgetRequest. Every request names the earlier requests that are
// open; the other earlier requests are settled.

#ifndef CLIENT_SDK_TRANSPORT_OPEN_REQUESTS_H_
#define CLIENT_SDK_TRANSPORT_OPEN_REQUESTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_set.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"

namespace berth::internal {

// Thread-safe.
class OpenRequests {
 public:
  // Limit of open requests that acquire something. The limit is half of the answers that the daemon caches for a
  // channel, so that releases always have capacity.
  static constexpr size_t kMaxOpen = 512;

  // Limit of open requests that the daemon accepts by name.
  static constexpr size_t kMaxNamed = 1024;

  struct Tag {
    uint64_t sequence = 0;
    // All sequences below this are settled, except those in `open`.
    uint64_t answered_below = 0;
    std::vector<uint64_t> open;
  };

  // Opens a request that acquires something.
  // Errors: kResourceExhausted (LIMIT) with kMaxOpen open.
  absl::StatusOr<Tag> Begin() ABSL_LOCKS_EXCLUDED(mu_);

  // Opens a request that releases something. Never refused, because there are no more such requests than leases.
  Tag BeginReturn() ABSL_LOCKS_EXCLUDED(mu_);

  // Closes a request. No effect on a request that is not open.
  void Settle(uint64_t sequence) ABSL_LOCKS_EXCLUDED(mu_);

  size_t open() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  Tag NextLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable Mutex mu_;
  uint64_t next_ ABSL_GUARDED_BY(mu_) = 1;
  absl::btree_set<uint64_t> open_ ABSL_GUARDED_BY(mu_);
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_TRANSPORT_OPEN_REQUESTS_H_
