// StopDrain: operator calls that wait until nothing is out, in order to stop the daemon.

#ifndef DAEMON_CORE_SESSIONS_STOP_DRAIN_H_
#define DAEMON_CORE_SESSIONS_STOP_DRAIN_H_

#include <algorithm>
#include <map>

#include <berth/ids.h>

#include "absl/time/time.h"

namespace berth::core {

// Thread-compatible. Not persisted.
struct StopDrain {
  // Waiting calls and their deadlines.
  std::map<CallId, absl::Time> calls;
  // One of the calls was answered: the daemon is stopping and grants nothing more.
  bool done = false;

  absl::Time next_deadline() const {
    absl::Time next = absl::InfiniteFuture();
    for (const auto& [call, deadline] : calls) next = std::min(next, deadline);
    return next;
  }
};

}  // namespace berth::core

#endif  // DAEMON_CORE_SESSIONS_STOP_DRAIN_H_
