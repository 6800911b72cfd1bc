// AcceptGate: limits the rate at which users open connections. The gate closes a connection above the rate at once,
// after reading only its uid: each connection costs the daemon more than its client. The user behind that uid may be
// another one (docs/design/0033), which shows once the peer is identified:
//
//   absl::Status status = gate.Admit(uid, now);
//   // Identify the peer of an admitted connection, then:
//   if (identified) status = gate.Attribute(uid, user, now);
//   if (!identified) gate.Withdraw();

#ifndef DAEMON_SERVICE_LIMITS_ACCEPT_GATE_H_
#define DAEMON_SERVICE_LIMITS_ACCEPT_GATE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "daemon/base/token_bucket.h"

namespace berth::service {

// Rates for one user's connections, and for all. The burst covers the reconnections after a broker restart.
struct AcceptRates {
  Rate per_uid = {.per_second = 2'000, .burst = 8'192};
  Rate total = {.per_second = 8'000, .burst = 32'768};
};

// Thread-safe.
class AcceptGate {
 public:
  // Number of new connections that one connection ended for misbehaviour counts as. With the rates above, a user can
  // afford about one such connection a second, after the burst is used up.
  static constexpr double kPenalty = 2'048;

  explicit AcceptGate(const AcceptRates& rates) : rates_(rates), of_uid_(rates.per_uid), total_(rates.total) {}

  // Time after which a refused client may retry.
  static constexpr absl::Duration kPause = absl::Milliseconds(100);

  // How long the gate remembers the user behind a uid, and of how many uids at most.
  static constexpr absl::Duration kMemory = absl::Minutes(1);
  static constexpr size_t kMaxRemembered = 65'536;

  // Counts a connection of `uid`, to UserBehind(uid). A refused connection does not count.
  // Errors: LIMIT, with kPause.
  absl::Status Admit(uint32_t uid, absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);

  // Counts an admitted connection of `uid` to the user that its peer belongs to, and remembers that user.
  // Errors: as Admit(); the connection is withdrawn.
  absl::Status Attribute(uint32_t uid, uint32_t user, absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);

  // Takes an admitted connection back out of the count of all users: it is refused after all.
  void Withdraw() ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the user of the last connection of `uid`; `uid` itself if the gate does not remember one.
  uint32_t UserBehind(uint32_t uid, absl::Time now) const ABSL_LOCKS_EXCLUDED(mu_);

  // Charges the user kPenalty, because one of the user's connections was ended for what it sent.
  void Punish(uint32_t uid, absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the number of refused connections.
  uint64_t refused_total() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Remembered {
    uint32_t user = 0;
    absl::Time until;
  };

  uint32_t UserBehindLocked(uint32_t uid, absl::Time now) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  absl::Status RefuseLocked(const std::string& what, const Rate& rate) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const AcceptRates rates_;

  mutable Mutex mu_;
  UidBuckets of_uid_ ABSL_GUARDED_BY(mu_);
  TokenBucket total_ ABSL_GUARDED_BY(mu_);
  // Users by uid; only uids that are not their user's own.
  absl::flat_hash_map<uint32_t, Remembered> users_ ABSL_GUARDED_BY(mu_);
  uint64_t refused_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_LIMITS_ACCEPT_GATE_H_
