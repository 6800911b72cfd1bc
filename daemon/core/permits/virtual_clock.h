// VirtualClock: each tenant's use of a shared resource, in virtual time. A grant advances the tenant's own clock by the
// granted amount divided by its weight. The tenant whose clock is furthest behind is next, so waiting tenants get
// shares in proportion to their weights. A tenant that starts to wait (again) starts at the common clock, so time
// without a request earns nothing. A tenant ahead of the others stays ahead.
//
// Pure and thread-compatible. Remembers only tenants that are ahead of the common clock.

#ifndef DAEMON_CORE_PERMITS_VIRTUAL_CLOCK_H_
#define DAEMON_CORE_PERMITS_VIRTUAL_CLOCK_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "daemon/core/types/caller.h"

namespace berth::core {

// A charge for a grant.
struct ClockCharge {
  // Number of the charges by earlier brokers.
  static constexpr uint64_t kRestored = 1;

  double cost = 0;
  // Rises with each charge to any tenant.
  uint64_t number = 0;
};

// A tenant's own clock. A charge that is taken back leaves the clock where it would be without the charge. That holds
// also if the tenant has had other charges since, or has started again at the common clock.
class OwnClock {
 public:
  // `last_charge` is the number of the last charge; 0 for a restored clock, which includes earlier charges.
  explicit OwnClock(double value, uint64_t last_charge = 0) : starts_{{value, last_charge}} {}

  double value() const { return starts_.front().clock; }
  // The tenant starts at `common` unless it is ahead of that. `last_charge` as above.
  void Start(double common, uint64_t last_charge);
  void Add(double cost);
  void TakeBack(const ClockCharge& charge);

 private:
  // The most starts that are remembered. A start is forgotten once a later one counts as much, so more are rare.
  static constexpr size_t kMostStarts = 8;
  // A start, and the clock that the tenant has by it: the common clock then, and all charges since.
  struct StartPoint {
    double clock = 0;
    // Number of the last charge before the start.
    uint64_t after = 0;
  };

  // Forgets starts that cannot decide any more.
  void Trim();

  // Earliest start first. A later start has the lesser clock, and decides once earlier charges are taken back.
  absl::InlinedVector<StartPoint, 1> starts_;
};

class VirtualClock {
 public:
  // Adds a tenant that starts to wait. Returns its own clock, which the caller stores.
  OwnClock Enter(const Account& account);
  // Removes a tenant with that clock. Returns whether the clock remembers it.
  bool Leave(const Account& account, OwnClock own);
  // Records a charge to a tenant whose clock was at `start`: no tenant starts behind that from now on. Returns the
  // tenants that are no longer ahead, and are no longer remembered.
  std::vector<Account> Advance(double start);
  // Takes back a charge to a remembered tenant. Returns whether the clock still remembers the tenant; empty if it did
  // not before.
  std::optional<bool> TakeBack(const Account& account, const ClockCharge& charge);

  double now() const { return now_; }
  // Returns the number of the last charge.
  uint64_t charges() const { return charges_; }
  // Restores the common clock; called before all other methods.
  void RestoreNow(double now) { now_ = now; }
  // Idle tenants that are ahead, with their own clocks.
  const absl::flat_hash_map<Account, OwnClock>& ahead() const { return ahead_; }
  // Number of idle tenants that are ahead.
  size_t remembered() const { return ahead_.size(); }

 private:
  double now_ = 0;
  uint64_t charges_ = ClockCharge::kRestored;
  absl::flat_hash_map<Account, OwnClock> ahead_;
  // The same tenants, least far ahead first.
  std::set<std::pair<double, Account>> in_order_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_PERMITS_VIRTUAL_CLOCK_H_
