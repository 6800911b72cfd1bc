// Ring shares: how the accounts that write into one bounded ring of records share it. A ring above its bound evicts the
// oldest records of the accounts that hold most, so that no user's records push out another user's. Operators have
// their own part of the ring, and so have the records of arrivals and departures.
//
//   std::map<RingKey, uint64_t> limits = LimitRing(total, held);
//   // Then evict the oldest of each key until held[key] <= limits[key].

#ifndef DAEMON_CORE_TYPES_RING_SHARES_H_
#define DAEMON_CORE_TYPES_RING_SHARES_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>

#include "absl/time/time.h"
#include "daemon/core/types/caller.h"

namespace berth::core {

// A part of a ring. Each part keeps its share however full the other parts are; a part that needs less than its share
// leaves the rest to the others.
enum class RingPart : uint8_t {
  // A quarter: the operators' records and the daemon's own.
  kOperators,
  // A quarter: arrivals and departures of users' sessions and processes.
  kAdmission,
  // The rest: all other records of users.
  kUsers,
};

// The holder of a share: an account, which is a user (UserOf), in a part. The operators' part has one account, 0.
struct RingKey {
  RingPart part = RingPart::kUsers;
  uint32_t account = 0;
  friend auto operator<=>(const RingKey&, const RingKey&) = default;
};

// Returns the share of a tenant, for a ring that knows operators only by `operators`, the uid of the daemon.
inline RingKey RingKeyOf(const Tenant& tenant, uint32_t operators) {
  if (tenant.uid == operators && tenant.container.empty()) return {.part = RingPart::kOperators};
  return {.account = UserOf(tenant)};
}

// How far back a ring's records reach.
struct RingReach {
  // The time of the oldest record; infinite future for an empty ring.
  absl::Time oldest = absl::InfiniteFuture();
  // The ring has every record after this time; infinite past if nothing was evicted.
  absl::Time complete_since = absl::InfinitePast();
};

// Divides `total` fairly among the keys that hold something: first among the parts by their shares, then evenly among
// the accounts of a part. No key gets more than it holds. A key that holds no more than its share keeps everything.
// Returns the limit of each key in `held`. The limits add up to `total` if the holdings add up to more.
std::map<RingKey, uint64_t> LimitRing(uint64_t total, const std::map<RingKey, uint64_t>& held);

// Counts the places of a queue in front of a ring. An account of users takes at most half of them, over all parts. So a
// user whose records arrive faster than the disk takes them leaves places to the others. Thread-compatible.
class RingPlaces {
 public:
  explicit RingPlaces(size_t places) : places_(places) {}

  // Takes a place. Returns whether there was one.
  bool Take(const RingKey& key);
  // Returns a place that `key` has taken.
  void Return(const RingKey& key);

 private:
  const size_t places_;
  size_t taken_ = 0;
  // Places of each user, by account; only users with places.
  std::map<uint32_t, size_t> taken_by_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_TYPES_RING_SHARES_H_
