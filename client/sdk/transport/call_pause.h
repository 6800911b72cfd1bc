// CallPauses manages the pauses of a session's calls between two attempts: the length of each pause, and the events
// that end it early.
//
// After its broker's death a call is sent again at once, except a call that waits for a lease. A waiting call returns
// when the next broker calls it back by a message on the process's channel
// (docs/design/0027-waiters-return-in-turn.md).
//
//   attempts.Sent(SteadyNow());
//   absl::Status status = Send();
//   if (const auto pause = pauses.Before(limits, SteadyNow(), &attempts, &status)) {
//     pauses.AwaitEnd(limits, *pause);  // Or PauseAlarm::Start(), for callers without a thread for the wait.
//     …                                 // The next attempt.
//   }

#ifndef CLIENT_SDK_TRANSPORT_CALL_PAUSE_H_
#define CLIENT_SDK_TRANSPORT_CALL_PAUSE_H_

#include <functional>
#include <memory>
#include <optional>

#include <berth/cancellation.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/sdk/transport/call_attempts.h"
#include "client/sdk/transport/call_limits.h"
#include "common/mutex.h"

namespace berth::internal {

// The pause between two attempts of one call.
struct CallPause {
  // Latest end of the pause.
  absl::Time end;
  // For a waiting call: a broker that calls waiting calls back after this time ends the pause.
  std::optional<absl::Time> called_after;
};

// State of one session in one process. Thread-safe. Times are those of SteadyNow().
class CallPauses {
 public:
  // Longest pause of a waiting call, whether it is called back or not. A broker drops a call that has not returned five
  // seconds after the broker's start.
  static constexpr absl::Duration kLongestAway = absl::Seconds(3);

  // `over` is cancelled when the session is over, and must outlive this object. `called`: whether the process has a
  // channel on which a broker can call waiting calls back.
  CallPauses(Cancellation* over, bool called) : over_(*over), called_(called) {}

  // Handles the message by which a broker calls waiting calls back.
  void OnReturn() ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the pause before the next attempt of a call whose attempt ended with `*status` at `now`. Returns nullopt if
  // the call is over; then `*status` is its final result.
  std::optional<CallPause> Before(const CallLimits& limits, absl::Time now, CallAttempts* attempts,
                                  absl::Status* status) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the remaining time of the pause, as known now. Zero for a cancelled call, or where the session is over.
  absl::Duration Rest(const CallLimits& limits, const CallPause& pause, absl::Time now) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Blocks until the pause is over.
  void AwaitEnd(const CallLimits& limits, const CallPause& pause) ABSL_LOCKS_EXCLUDED(mu_);

  // Calls `wake` when Rest() may have become shorter: possibly at once, under a lock, and more than once. Events before
  // the construction call nothing, so the caller must read Rest() after it.
  class Hooks {
   public:
    Hooks(CallPauses* pauses, const CallLimits& limits, const std::function<void()>& wake)
        : return_(pauses->NextReturn()),
          returns_(return_.get(), wake),
          over_(&pauses->over_, wake),
          cancelled_(limits.cancellation, wake) {}

   private:
    // Shared with the session until the next return.
    const std::shared_ptr<Cancellation> return_;
    const Cancellation::Hook returns_;
    const Cancellation::Hook over_;
    const Cancellation::Hook cancelled_;
  };

 private:
  // Returns the object that the next OnReturn() cancels.
  std::shared_ptr<Cancellation> NextReturn() const ABSL_LOCKS_EXCLUDED(mu_);
  // Whether the broker of the last attempt has no next broker yet that calls waiting calls back. If false, the next
  // broker may already have done so. Over a connection whose end gRPC has not noticed, a call still goes to the
  // earlier, dead broker.
  bool ToBeCalled(const CallAttempts& attempts, absl::Time now) const ABSL_LOCKS_EXCLUDED(mu_);

  Cancellation& over_;
  const bool called_;

  mutable Mutex mu_;
  // Time at which a broker last called waiting calls back, and the cancellation that ends their pauses the next time.
  absl::Time returned_at_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  std::shared_ptr<Cancellation> return_ ABSL_GUARDED_BY(mu_) = std::make_shared<Cancellation>();
  // Send time of the latest attempt that a broker answered.
  absl::Time answered_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
};

}  // namespace berth::internal

#endif  // CLIENT_SDK_TRANSPORT_CALL_PAUSE_H_
