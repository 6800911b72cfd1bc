// CallAttempts decides whether a call that failed is sent again, and when.
//
// A daemon that says "not now" (UNAVAILABLE with a reason) is asked again after a pause, a few times. One that went
// away with the call is followed by another that knows the request by its number, and is asked at once; but a call that
// was the last thing that several daemons heard may be what ends them, and is sent to no more of them. A call that one
// of them has had for a while is not suspect: daemons die of other things, too.

#ifndef CLIENT_INTERNAL_CALL_ATTEMPTS_H_
#define CLIENT_INTERNAL_CALL_ATTEMPTS_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace berth::internal {

// Of one call. Thread-compatible.
class CallAttempts {
 public:
  // What a daemon refuses for now is sent so often.
  static constexpr int kMaxRefusals = 3;
  // Lives of the daemon's that may end right after they were sent the call.
  static constexpr int kMaxEpochs = 3;
  // How long a daemon has to have a call for that it does not die of it. It includes its start.
  static constexpr absl::Duration kSuspectFor = absl::Milliseconds(500);
  // After the first refusal, and the second suspect end; more after each later one.
  static constexpr absl::Duration kPause = absl::Milliseconds(50);

  void Sent(absl::Time now) { sent_ = now; }
  // When the last attempt was.
  absl::Time sent() const { return sent_; }
  // Attempts whose daemon went away.
  int ends() const { return ends_; }

  // The attempt came to `*status`. Returns how long to wait before the next one; nothing if that is what the call came
  // to, which `*status` then says.
  std::optional<absl::Duration> Failed(absl::Time now, absl::Status* status);

 private:
  absl::Time sent_ = absl::InfinitePast();
  int refusals_ = 0;
  int ends_ = 0;
  int suspect_ends_ = 0;
  // A daemon had it for long enough.
  bool cleared_ = false;
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_CALL_ATTEMPTS_H_
