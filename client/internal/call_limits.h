// CallLimits: how long a call may take, what may end it sooner, and whether it waits for a lease.

#ifndef CLIENT_INTERNAL_CALL_LIMITS_H_
#define CLIENT_INTERNAL_CALL_LIMITS_H_

#include "absl/time/time.h"
#include "client/cancellation.h"
#include "common/steady_clock.h"

namespace berth::internal {

struct CallLimits {
  // Beyond a wait's own limit, so that the daemon's refusal arrives rather than the transport's.
  static constexpr absl::Duration kAnswerSlack = absl::Seconds(5);

  // Those of a call that the daemon may have wait: `max_wait` at most, which may be infinite.
  static CallLimits Within(absl::Duration max_wait, Cancellation* cancellation = nullptr) {
    return {.deadline = SteadyNow() + max_wait + kAnswerSlack, .cancellation = cancellation};
  }
  // The same of one that waits for a lease.
  static CallLimits Waiting(absl::Duration max_wait, Cancellation* cancellation = nullptr) {
    CallLimits limits = Within(max_wait, cancellation);
    limits.waits = true;
    return limits;
  }

  // Of SteadyNow().
  absl::Time deadline;
  Cancellation* cancellation = nullptr;
  // For a lease, in a queue that keeps its place: after a broker's death it comes back in its turn (call_pause.h). Its
  // deadline is kAnswerSlack after its wait's own.
  bool waits = false;
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_CALL_LIMITS_H_
