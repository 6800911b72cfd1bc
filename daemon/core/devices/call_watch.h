// CallWatch: detects a hung worker of a device. A worker does one driver call at a time. A worker hangs when a call is
// pending and no answer came for as long as one call may take. Arithmetic only: the time is an argument.
// Thread-compatible.

#ifndef DAEMON_CORE_DEVICES_CALL_WATCH_H_
#define DAEMON_CORE_DEVICES_CALL_WATCH_H_

#include <set>

#include <berth/bytes.h>

#include "absl/time/time.h"

namespace berth::core {

// Longest driver call.
struct CallLimits {
  absl::Duration base = absl::Seconds(10);
  // Added for each GiB that the call allocates or releases.
  absl::Duration per_gib = absl::Milliseconds(100);
};

class CallWatch {
 public:
  explicit CallWatch(CallLimits limits) : limits_(limits) {}

  // The worker gets a call about `bytes`.
  void OnAsked(absl::Time now, Bytes bytes);
  // The worker answered a call. Ignored for an unknown call, or one from before Clear().
  void OnAnswered(absl::Time now, Bytes bytes);
  // The worker is gone or given up: no call is pending any more.
  void Clear() { asked_.clear(); }

  // Returns when the worker counts as hung, unless it answers before. The limit is that of the largest pending call,
  // from the last answer on. InfiniteFuture while no call is pending.
  absl::Time deadline() const { return asked_.empty() ? absl::InfiniteFuture() : since_ + allowed(); }
  // Returns the limit that deadline() applies.
  absl::Duration allowed() const;

 private:
  const CallLimits limits_;
  std::multiset<Bytes> asked_;
  // Time of the first pending call, or of the last answer.
  absl::Time since_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_DEVICES_CALL_WATCH_H_
