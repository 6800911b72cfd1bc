// NodeClock: the broker's clock, and the conversion of its times to wall time.
//
// The broker's decisions and the times in its ledger use the machine's boot clock, which nothing can set. A deadline,
// an age or a hold is thus independent of the wall clock, and the same for every broker of the boot. A ledger lives as
// long as the boot, so it needs no further time base. Wall time is for people: a time is converted when it is shown,
// with the wall clock's offset at that moment. Ages therefore look right beside the reader's own clock.

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
  // Returns nanoseconds of a clock: since the boot for the boot clock, since the Unix epoch for the wall clock.
  using Source = std::function<int64_t()>;
  NodeClock(Source boot, Source wall) : boot_(std::move(boot)), wall_(std::move(wall)) {}
  // Returns the machine's clock.
  static NodeClock& Real();

  // Returns the time since the boot, as an offset from the Unix epoch. Never jumps, and advances while the machine is
  // suspended.
  absl::Time Now() const;
  // Converts a time of Now() to wall time with the wall clock's current setting. Results are stable as long as the wall
  // clock is not set.
  absl::Time ToWall(absl::Time time) const { return time + Offset(); }
  // Converts wall time to a time of Now().
  absl::Time FromWall(absl::Time time) const { return time - Offset(); }

 private:
  absl::Duration Offset() const;

  const Source boot_;
  const Source wall_;
  // The last offset, in nanoseconds; INT64_MIN before the first.
  mutable std::atomic<int64_t> offset_{INT64_MIN};
};

}  // namespace berth

#endif  // DAEMON_BROKER_NODE_CLOCK_H_
