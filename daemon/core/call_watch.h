// CallWatch: whether a device's worker gets on with what it was asked. A worker does one driver call after the other,
// so it hangs when something is asked of it and it has answered nothing for as long as one call may take. Arithmetic
// only: the time comes in. Thread-compatible.

#ifndef DAEMON_CORE_CALL_WATCH_H_
#define DAEMON_CORE_CALL_WATCH_H_

#include <set>

#include "absl/time/time.h"
#include "common/bytes.h"

namespace berth::core {

// How long a driver call may take.
struct CallLimits {
  absl::Duration base = absl::Seconds(10);
  // Added for each GiB that the call makes or gives back.
  absl::Duration per_gib = absl::Milliseconds(100);
};

class CallWatch {
 public:
  explicit CallWatch(CallLimits limits) : limits_(limits) {}

  // The worker is asked for a call about so many bytes.
  void OnAsked(absl::Time now, Bytes bytes);
  // It has answered one; of a call that was not asked, or before Clear(), this says nothing.
  void OnAnswered(absl::Time now, Bytes bytes);
  // It is gone, or given up: nothing is asked of it any more.
  void Clear() { asked_.clear(); }

  // When it hangs, unless it answers before: the largest of the calls that it may be at is given its time from the
  // last answer on. InfiniteFuture while nothing is asked.
  absl::Time deadline() const { return asked_.empty() ? absl::InfiniteFuture() : since_ + allowed(); }
  // The time that deadline() gives.
  absl::Duration allowed() const;

 private:
  const CallLimits limits_;
  std::multiset<Bytes> asked_;
  // When the first call was asked, or the last was answered.
  absl::Time since_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_CALL_WATCH_H_
