// CallLimits: the deadline of a call, what may end the call sooner, and whether the call waits for a lease.

#ifndef CLIENT_SDK_TRANSPORT_CALL_LIMITS_H_
#define CLIENT_SDK_TRANSPORT_CALL_LIMITS_H_

#include <atomic>
#include <cstdint>

#include <berth/cancellation.h>

#include "absl/time/time.h"
#include "common/patience.h"
#include "common/steady_clock.h"

namespace berth::internal {

struct CallLimits {
  // Time beyond a wait's own limit, so that the daemon's refusal arrives before the transport's deadline.
  static constexpr absl::Duration kAnswerSlack = absl::Seconds(5);

  // Returns the limits of a call that the daemon may delay by at most `max_wait`, which may be infinite.
  static CallLimits Within(absl::Duration max_wait, Cancellation* cancellation = nullptr) {
    return {.deadline = SteadyNow() + max_wait + Patient(kAnswerSlack), .cancellation = cancellation};
  }
  // As Within(), for a call that waits for a lease.
  static CallLimits Waiting(absl::Duration max_wait, Cancellation* cancellation = nullptr) {
    CallLimits limits = Within(max_wait, cancellation);
    limits.waits = true;
    return limits;
  }

  // Deadline by SteadyNow().
  absl::Time deadline;
  Cancellation* cancellation = nullptr;
  // Whether the call waits for a lease in a queue. After a broker's death the call returns in its turn and does not
  // lose its place (call_pause.h). `deadline` is Patient(kAnswerSlack) after the wait's own deadline.
  bool waits = false;
  // Sequence of the request whose grant this process takes up when the call succeeds; 0 for none.
  uint64_t takes_up = 0;
  // For a stream without a deadline: whether the current attempt has received a message. An attempt that has not, and
  // has no connection after the session's time-out, ends the call. Null for every other call.
  const std::atomic<bool>* received = nullptr;
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_TRANSPORT_CALL_LIMITS_H_
