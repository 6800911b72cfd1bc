// Shutdown: the end of the daemon: operators' calls that wait until nothing is out, and the refusal of all requests.

#ifndef DAEMON_CORE_SESSIONS_SHUTDOWN_H_
#define DAEMON_CORE_SESSIONS_SHUTDOWN_H_

#include <berth/ids.h>

#include "absl/time/time.h"
#include "daemon/core/sessions/stop_drain.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/session_types.h"
#include "daemon/core/types/step_context.h"

namespace berth::core {

struct Managers;

// Thread-compatible; part of the core.
class Shutdown {
 public:
  // `core` outlives the manager.
  explicit Shutdown(Managers& core) : core_(core) {}

  // ---- Events and queries (core.h) ---------------------------------------------------------------------------

  void ShutDown(StepContext& step);
  void DrainToStop(StepContext& step, CallId call, const Caller& caller, absl::Time deadline);

  // ---- For the other managers -------------------------------------------------------------------------------

  OutCounts CountOut() const;
  bool CancelDrain(StepContext& step, CallId call);  // Returns whether the call waited for a drain.
  void AnswerDrains(StepContext& step);

  // Whether an operator's call waits for the last lease, or was answered.
  bool draining() const { return drain_.done || !drain_.calls.empty(); }
  // Whether every request is refused.
  bool begun() const { return shutting_down_; }
  absl::Time next_deadline() const { return drain_.next_deadline(); }

 private:
  Managers& core_;
  bool shutting_down_ = false;
  StopDrain drain_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_SESSIONS_SHUTDOWN_H_
