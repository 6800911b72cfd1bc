// CallAttempts decides whether and when a failed call is sent again.
//
// After a temporary refusal (UNAVAILABLE with a reason) the call is retried a few times, after a pause. After the end
// of the daemon the call is retried at once, because the next daemon knows the request by its number. But a call that
// was the last message to several daemons before they ended may have caused their end, so it is no longer sent. A call
// that a daemon has held for a while is not suspect, because daemons end for other reasons, too.

#ifndef CLIENT_SDK_TRANSPORT_CALL_ATTEMPTS_H_
#define CLIENT_SDK_TRANSPORT_CALL_ATTEMPTS_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace berth::internal {

// State of one call. Thread-compatible.
class CallAttempts {
 public:
  // Limit of attempts that the daemon refuses temporarily.
  static constexpr int kMaxRefusals = 3;
  // Limit of daemon lifetimes that may end right after the call was sent.
  static constexpr int kMaxEpochs = 3;
  // Time after which a daemon that still holds the call clears it of suspicion. Includes the daemon's start.
  static constexpr absl::Duration kSuspectFor = absl::Milliseconds(500);
  // Pause after the first refusal and after the second suspect end; grows with each later one.
  static constexpr absl::Duration kPause = absl::Milliseconds(50);

  void Sent(absl::Time now) { sent_ = now; }
  // Send time of the last attempt.
  absl::Time sent() const { return sent_; }
  // Number of attempts whose daemon ended.
  int ends() const { return ends_; }

  // Handles an attempt that ended with `*status`. Returns the pause before the next attempt. Returns nullopt if the
  // call is over; then `*status` is its final result.
  std::optional<absl::Duration> Failed(absl::Time now, absl::Status* status);

 private:
  absl::Time sent_ = absl::InfinitePast();
  int refusals_ = 0;
  int ends_ = 0;
  int suspect_ends_ = 0;
  // Whether a daemon held the call for long enough.
  bool cleared_ = false;
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_TRANSPORT_CALL_ATTEMPTS_H_
