// Supervision: state machine of one device's worker. Decides whether a worker that ended is restarted, when the device
// is stopped, and when a worker that survives SIGKILL is abandoned. The supervisor owns the processes; callers pass the
// time.
//
//   running ──ended──► running (at most 3 restarts in 60 s) or stopped
//   running ──killed─► ending ──ended──► as above, or as the kill says
//                      ending ──2 s────► abandoned ──ended──► stopped
//   stopped ──enabled► running
//
// A worker on demand becomes idle where another worker would be restarted, and starts when it is needed.
//
//   idle ──wanted──► running ──ended, killed─► as above, but idle instead of a restart

#ifndef DAEMON_SUPERVISOR_PROCESSES_SUPERVISION_H_
#define DAEMON_SUPERVISOR_PROCESSES_SUPERVISION_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "daemon/supervisor/processes/child_process.h"
#include "daemon/supervisor/processes/restart_policy.h"

namespace berth {

// Thread-compatible.
class Supervision {
 public:
  // Time from SIGKILL until the worker is abandoned. A process that still exists then is stuck in the driver.
  static constexpr std::chrono::seconds kKillPatience{2};

  enum class State { kIdle, kRunning, kEnding, kAbandoned, kStopped };

  // Effect of the end of a worker that the supervisor kills.
  enum class Then {
    // As after an end without a kill: for a worker that hangs.
    kAsByItself,
    // A restart, which does not count.
    kRestart,
    kStop,
  };

  explicit Supervision(bool on_demand = false)
      : on_demand_(on_demand), state_(on_demand ? State::kIdle : State::kRunning) {}

  // Records that a worker is needed. Returns whether to start one: only if the worker is idle.
  bool OnWanted();

  // Records that a worker was sent SIGKILL because of `why`. Among several calls the first reason stays, except that
  // kStop replaces any other. Requires: running or ending.
  void OnKilled(MonotonicTime now, Then then, const std::string& why);

  // Records that the worker has ended. Returns whether to start another.
  bool OnEnded(MonotonicTime now, const ProcessEnd& end);

  // Records that no worker could be started: none starts until the device is enabled.
  void OnNotStarted(const std::string& why);

  // Records that an operator brings a stopped worker back; forgets earlier restarts. Returns whether to start one: not
  // if a worker exists, even an abandoned one, nor a worker on demand.
  bool OnEnabled();

  // Records the passage of time. Returns whether state() or restarts_left() changed.
  bool OnTime(MonotonicTime now);
  // Returns when OnTime() is due; max() for never.
  MonotonicTime next_change() const;

  State state() const { return state_; }
  // Returns how many more times a worker that ends is restarted; 0 for a device that is out of service.
  uint32_t restarts_left() const;
  // Why the last worker ended, for people; empty if none has.
  const std::string& last_failure() const { return last_failure_; }

 private:
  // Sets the state for the next worker. Returns whether to start it now.
  bool Again();

  bool on_demand_;
  State state_;
  WorkerRestarts restarts_;
  std::string last_failure_;
  // The end of kKillPatience while ending; otherwise max().
  MonotonicTime kill_deadline_ = MonotonicTime::max();
  Then then_ = Then::kAsByItself;
};

// Returns whether the worker ended because its device is lost.
bool IsDeviceLost(const ProcessEnd& end);

}  // namespace berth

#endif  // DAEMON_SUPERVISOR_PROCESSES_SUPERVISION_H_
