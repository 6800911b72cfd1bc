// NodeClock: the broker's clock, and what its times are on the wall.
//
// Everything that the broker decides by, and all that its ledger keeps, is by the clock of the machine's boot, which
// nobody sets: a deadline, an age or a hold is the same whatever becomes of the wall clock, and for every broker of the
// boot. A ledger lives with the boot, so nothing more is to be kept of it. Wall time is for people: a time is turned
// into it as it is shown, by what the wall says then, so that ages come out right beside the clock of who looks.

#ifndef DAEMON_BROKER_NODE_CLOCK_H_
#define DAEMON_BROKER_NODE_CLOCK_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>

#include "absl/time/time.h"

namespace berth {

// Thread-safe.
class NodeClock {
 public:
  // Each gives the nanoseconds of a clock: of the boot's, since then, and of the wall's, since the Unix epoch.
  using Source = std::function<int64_t()>;
  NodeClock(Source boot, Source wall) : boot_(std::move(boot)), wall_(std::move(wall)) {}
  // The machine's.
  static NodeClock& Real();

  // Time since the boot, from the Unix epoch on. Never jumps, and goes on while the machine is suspended.
  absl::Time Now() const;
  // What a time of Now()'s is on the wall, as the wall is set now; the same again as long as nobody sets it.
  absl::Time ToWall(absl::Time time) const { return time + Offset(); }
  // And back.
  absl::Time FromWall(absl::Time time) const { return time - Offset(); }

 private:
  absl::Duration Offset() const;

  const Source boot_;
  const Source wall_;
  // As it was last seen to be; nothing yet for the least there is.
  mutable std::atomic<int64_t> offset_{INT64_MIN};
};

}  // namespace berth

#endif  // DAEMON_BROKER_NODE_CLOCK_H_
