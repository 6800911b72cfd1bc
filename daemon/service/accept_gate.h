// AcceptGate: how fast users may open connections. Whoever comes faster is hung up on at once, before anything but the
// uid is read of who it is: each connection costs the daemon more than its client.

#ifndef DAEMON_SERVICE_ACCEPT_GATE_H_
#define DAEMON_SERVICE_ACCEPT_GATE_H_

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "daemon/service/token_bucket.h"

namespace berth::service {

// Connections of one user, and of all. A burst is what comes back at once when a broker has followed another.
struct AcceptRates {
  Rate per_uid = {.per_second = 2'000, .burst = 8'192};
  Rate total = {.per_second = 8'000, .burst = 32'768};
};

// Thread-safe.
class AcceptGate {
 public:
  // As many as so many new ones count one that was ended for what it sent: with the rates above a user has one such a
  // second, once its burst is used up.
  static constexpr double kPenalty = 2'048;

  explicit AcceptGate(const AcceptRates& rates) : rates_(rates), of_uid_(rates.per_uid), total_(rates.total) {}

  // After which who was refused may come again.
  static constexpr absl::Duration kPause = absl::Milliseconds(100);

  // Counts a connection in. What a user is refused counts for nobody.
  // Errors: LIMIT, with kPause.
  absl::Status Admit(uint32_t uid, absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);

  // A connection of the user's was ended for what it sent.
  void Punish(uint32_t uid, absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);

  // Connections that were refused.
  uint64_t refused_total() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const AcceptRates rates_;

  mutable Mutex mu_;
  UidBuckets of_uid_ ABSL_GUARDED_BY(mu_);
  TokenBucket total_ ABSL_GUARDED_BY(mu_);
  uint64_t refused_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_ACCEPT_GATE_H_
