// VirtualClock: what each tenant has had of something that several share, in virtual time. A tenant's own clock
// moves by what it is given, divided by its weight; whose clock is furthest behind is next, so tenants that keep
// waiting get shares as their weights are. Who comes (again) starts where the others are: a time without a wish
// earns nothing, and what was had ahead of the others is still to be made good.
//
// Pure and thread-compatible. Remembers only tenants that are ahead of the common clock.

#ifndef DAEMON_CORE_VIRTUAL_CLOCK_H_
#define DAEMON_CORE_VIRTUAL_CLOCK_H_

#include <cstddef>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "daemon/core/caller.h"

namespace berth::core {

class VirtualClock {
 public:
  // A tenant begins to want something. Returns: where its own clock stands, for the caller to keep.
  double Enter(const Tenant& tenant);
  // It wants nothing any more, and its own clock stands at `own`. Returns whether that is remembered.
  bool Leave(const Tenant& tenant, double own);
  // Somebody whose clock stood at `start` was given something: nobody starts behind that from now on. Returns: those
  // who are ahead no longer, and not remembered.
  std::vector<Tenant> Advance(double start);

  double now() const { return now_; }
  // As it stood before; first of all.
  void RestoreNow(double now) { now_ = now; }
  // Who wants nothing and is ahead, with its own clock.
  const absl::flat_hash_map<Tenant, double>& ahead() const { return ahead_; }
  // Tenants that want nothing and are ahead.
  size_t remembered() const { return ahead_.size(); }

 private:
  double now_ = 0;
  absl::flat_hash_map<Tenant, double> ahead_;
  // The same, the least far ahead first.
  std::set<std::pair<double, Tenant>> in_order_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_VIRTUAL_CLOCK_H_
