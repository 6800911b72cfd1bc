// RequestBook numbers the mutating requests of one channel and knows which are still open, so that the daemon
// can be told which of its kept answers it may drop.
//
// A request is open from Begin() until its outcome is settled: the answer was OK or a definite refusal, or
// the daemon answered a ForgetRequest for it. Every request tells which of those before it are open, and so that the
// others are settled.

#ifndef CLIENT_INTERNAL_REQUEST_BOOK_H_
#define CLIENT_INTERNAL_REQUEST_BOOK_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_set.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"

namespace berth::internal {

// Thread-safe.
class RequestBook {
 public:
  // Requests open at once that ask for something: half of the answers that the daemon keeps for a channel, so
  // that what gives something back always has room.
  static constexpr size_t kMaxOpen = 512;

  // The most open ones that the daemon takes the names of.
  static constexpr size_t kMaxNamed = 1024;

  struct Tag {
    uint64_t sequence = 0;
    // All below this are settled but for those in `open`.
    uint64_t answered_below = 0;
    std::vector<uint64_t> open;
  };

  // Opens a request that asks for something.
  // Errors: kResourceExhausted (LIMIT) with kMaxOpen open.
  absl::StatusOr<Tag> Begin() ABSL_LOCKS_EXCLUDED(mu_);

  // Opens a request that gives something back: never refused, for there are no more of them than there are
  // leases.
  Tag BeginReturn() ABSL_LOCKS_EXCLUDED(mu_);

  // Closes a request. Settling one that is not open does nothing.
  void Settle(uint64_t sequence) ABSL_LOCKS_EXCLUDED(mu_);

  size_t open() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  Tag NextLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable Mutex mu_;
  uint64_t next_ ABSL_GUARDED_BY(mu_) = 1;
  absl::btree_set<uint64_t> open_ ABSL_GUARDED_BY(mu_);
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_REQUEST_BOOK_H_
