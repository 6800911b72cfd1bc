// EitherCancellation: what ends a call whose caller has both a Cancellation and a stop token.

#ifndef CLIENT_INTERNAL_EITHER_CANCELLATION_H_
#define CLIENT_INTERNAL_EITHER_CANCELLATION_H_

#include <functional>
#include <stop_token>

#include "client/cancellation.h"

namespace berth::internal {

class EitherCancellation {
 public:
  // `cancellation` outlives this; it may be null.
  EitherCancellation(Cancellation* cancellation, const std::stop_token& stop)
      : of_caller_(stop.stop_possible() ? &either_ : cancellation),
        cancelled_(cancellation, [this] { either_.Cancel(); }),
        stopped_(stop, [this] { either_.Cancel(); }) {}

  // For the call; null where nothing ever ends it.
  Cancellation* get() { return of_caller_; }

 private:
  Cancellation either_;
  Cancellation* const of_caller_;
  const Cancellation::Hook cancelled_;
  const std::stop_callback<std::function<void()>> stopped_;
};

}  // namespace berth::internal

#endif  // CLIENT_INTERNAL_EITHER_CANCELLATION_H_
