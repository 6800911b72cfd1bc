// Supervision: what becomes of one device's worker: whether another follows one that ended, when the device is
// stopped, and when a worker is given up that SIGKILL does not end. It decides; the processes are the vault's, and the
// time comes in.
//
//   running ──ended──► running (at most 3 restarts in 60 s) or stopped
//   running ──killed─► ending ──ended──► as above, or as the kill says
//                      ending ──2 s────► abandoned ──ended──► stopped
//   stopped ──enabled► running
//
// A worker on demand is idle instead of being started anew: until it is wanted.
//
//   idle ──wanted──► running ──ended, killed─► as above, but idle where another would follow

#ifndef DAEMON_VAULT_SUPERVISION_H_
#define DAEMON_VAULT_SUPERVISION_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "daemon/vault/child_process.h"
#include "daemon/vault/restart_policy.h"

namespace berth {

// Thread-compatible.
class Supervision {
 public:
  // From SIGKILL on. Whoever is not gone then is stuck in the driver.
  static constexpr std::chrono::seconds kKillPatience{2};

  enum class State { kIdle, kRunning, kEnding, kAbandoned, kStopped };

  // What follows the end of a worker that the vault kills.
  enum class Then {
    // What would follow if it had ended by itself: for one that hangs.
    kAsByItself,
    // Another one, which does not count.
    kRestart,
    kStop,
  };

  explicit Supervision(bool on_demand = false)
      : on_demand_(on_demand), state_(on_demand ? State::kIdle : State::kRunning) {}

  // Somebody wants a worker. Returns whether to start one: only if it is idle.
  bool OnWanted();

  // A worker was sent SIGKILL, because of `why`. Of several, the first reason stays, and kStop wins.
  // Requires: running or ending.
  void OnKilled(MonotonicTime now, Then then, const std::string& why);

  // It has ended. Returns whether to start another.
  bool OnEnded(MonotonicTime now, const ProcessEnd& end);

  // No worker could be started: none will be until the device is enabled.
  void OnNotStarted(const std::string& why);

  // An operator brings a stopped worker back: what was is forgotten. Returns whether to start one: not if one is there,
  // be it abandoned, nor one on demand.
  bool OnEnabled();

  // Time has passed. Returns whether state() or restarts_left() is not what it was.
  bool OnTime(MonotonicTime now);
  // When OnTime() is due; max() for never.
  MonotonicTime next_change() const;

  State state() const { return state_; }
  // How many more ends of a worker would be followed by another; 0 for a device that is out of service.
  uint32_t restarts_left() const;
  // Why the last worker ended, for people; empty if none has.
  const std::string& last_failure() const { return last_failure_; }

 private:
  // Where another is to follow.
  bool Again();

  bool on_demand_;
  State state_;
  WorkerRestarts restarts_;
  std::string last_failure_;
  // While ending.
  MonotonicTime kill_deadline_ = MonotonicTime::max();
  Then then_ = Then::kAsByItself;
};

// Whether the worker ended because its device is lost.
bool IsDeviceLost(const ProcessEnd& end);

}  // namespace berth

#endif  // DAEMON_VAULT_SUPERVISION_H_
