// VirtualClock: each tenant's use of a shared resource, in virtual time. A grant advances the tenant's own clock by the
// granted amount divided by its weight. The tenant whose clock is furthest behind is next, so waiting tenants get
// shares in proportion to their weights. A tenant that starts to wait (again) starts at the common clock, so time
// without a request earns nothing. A tenant ahead of the others stays ahead.
//
// Pure and thread-compatible. Remembers only tenants that are ahead of the common clock.

#ifndef DAEMON_CORE_PERMITS_VIRTUAL_CLOCK_H_
#define DAEMON_CORE_PERMITS_VIRTUAL_CLOCK_H_

#include <cstddef>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "daemon/core/types/caller.h"

namespace berth::core {

class VirtualClock {
 public:
  // Adds a tenant that starts to wait. Returns its own clock, which the caller stores.
  double Enter(const Account& account);
  // Removes a tenant whose own clock is at `own`. Returns whether the clock remembers it.
  bool Leave(const Account& account, double own);
  // Records a grant to a tenant whose clock was at `start`: no tenant starts behind that from now on. Returns the
  // tenants that are no longer ahead, and are no longer remembered.
  std::vector<Account> Advance(double start);

  double now() const { return now_; }
  // Restores the common clock; called before all other methods.
  void RestoreNow(double now) { now_ = now; }
  // Idle tenants that are ahead, with their own clocks.
  const absl::flat_hash_map<Account, double>& ahead() const { return ahead_; }
  // Number of idle tenants that are ahead.
  size_t remembered() const { return ahead_.size(); }

 private:
  double now_ = 0;
  absl::flat_hash_map<Account, double> ahead_;
  // The same tenants, least far ahead first.
  std::set<std::pair<double, Account>> in_order_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_PERMITS_VIRTUAL_CLOCK_H_
