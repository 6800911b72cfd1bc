// CallPauses is where a session's calls are between two attempts: how long each stays away, and what ends that sooner.
//
// After its broker's death a call is sent again at once, but for one that waits for a lease: that one comes when the
// next broker has it come, which is said on the process's channel (docs/design/0027-who-waits-comes-back-in-turn.md).
//
//   attempts.Sent(SteadyNow());
//   absl::Status status = Send();
//   if (const auto pause = pauses.Before(limits, SteadyNow(), &attempts, &status)) {
//     pauses.AwaitEnd(limits, *pause);  // Or a PauseAlarm's Start(), for who has no thread for it.
//     …                                 // The next attempt.
//   }

#ifndef CLIENT_INTERNAL_CALL_PAUSE_H_
#define CLIENT_INTERNAL_CALL_PAUSE_H_

#include <functional>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/cancellation.h"
#include "client/internal/call_attempts.h"
#include "client/internal/call_limits.h"
#include "common/mutex.h"

namespace berth::internal {

// The pause between two attempts of one call.
struct CallPause {
  // When it ends, at the latest.
  absl::Time end;
  // Of a call that waits: a broker that has such calls come after that ends the pause.
  std::optional<absl::Time> called_after;
};

// Of one session in one process. Thread-safe. Times are SteadyNow()'s.
class CallPauses {
 public:
  // A call that waits comes back after that at the latest, called or not: a broker gives it up five seconds after its
  // start.
  static constexpr absl::Duration kLongestAway = absl::Seconds(3);

  // `over` is cancelled when the session is over, and outlives this. `called` says whether there is a channel for a
  // broker to have calls come by.
  CallPauses(Cancellation* over, bool called) : over_(*over), called_(called) {}

  // A broker has those calls come that wait.
  void OnReturn() ABSL_LOCKS_EXCLUDED(mu_);

  // The pause before a call is sent again whose attempt came to `*status` at `now`; nothing if that is what the call
  // came to, which `*status` then says.
  std::optional<CallPause> Before(const CallLimits& limits, absl::Time now, CallAttempts* attempts,
                                  absl::Status* status) ABSL_LOCKS_EXCLUDED(mu_);
  // How long it lasts still, as far as is known now; zero for who cancels, or whose session is over.
  absl::Duration Rest(const CallLimits& limits, const CallPause& pause, absl::Time now) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns when the pause is over.
  void AwaitEnd(const CallLimits& limits, const CallPause& pause) ABSL_LOCKS_EXCLUDED(mu_);

  // Wakes who pauses where Rest() may have become shorter: perhaps at once, under a lock, and more than once. What came
  // before it was made wakes nobody: Rest() is to be read after that.
  class Hooks {
   public:
    Hooks(CallPauses* pauses, const CallLimits& limits, const std::function<void()>& wake)
        : return_(pauses->NextReturn()),
          returns_(return_.get(), wake),
          over_(&pauses->over_, wake),
          cancelled_(limits.cancellation, wake) {}

   private:
    // Of the session's too, until the next return.
    const std::shared_ptr<Cancellation> return_;
    const Cancellation::Hook returns_;
    const Cancellation::Hook over_;
    const Cancellation::Hook cancelled_;
  };

 private:
  // Cancelled by the next OnReturn().
  std::shared_ptr<Cancellation> NextReturn() const ABSL_LOCKS_EXCLUDED(mu_);
  // Whether whom the last attempt was sent to is yet to be followed by a broker that has calls come. Else that one may
  // have done so: over a connection that nobody looked at a call is still sent to the broker before, which is dead.
  bool ToBeCalled(const CallAttempts& attempts, absl::Time now) const ABSL_LOCKS_EXCLUDED(mu_);

  Cancellation& over_;
  const bool called_;

  mutable Mutex mu_;
  // When a broker had those calls come that wait, the last time, and what ends their pauses the next time.
  absl::Time returned_at_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  std::shared_ptr<Cancellation> return_ ABSL_GUARDED_BY(mu_) = std::make_shared<Cancellation>();
  // When the last attempt was sent of those that a broker answered.
  absl::Time answered_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_CALL_PAUSE_H_
