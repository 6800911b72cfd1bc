// Restart policies of the daemon's processes. Arithmetic only: callers pass the time.

#ifndef DAEMON_SUPERVISOR_PROCESSES_RESTART_POLICY_H_
#define DAEMON_SUPERVISOR_PROCESSES_RESTART_POLICY_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

namespace berth {

using MonotonicTime = std::chrono::steady_clock::time_point;

// A worker is restarted immediately, at most 3 times in any 60 s.
class WorkerRestarts {
 public:
  static constexpr size_t kMax = 3;
  static constexpr std::chrono::seconds kWindow{60};

  // Returns whether the worker that died at `now` shall be restarted.
  bool OnDeath(MonotonicTime now);

  // Forgets the restarts that are older than the window at `now`.
  void Forget(MonotonicTime now);
  // Returns when Forget() next has a restart to forget; max() for never.
  MonotonicTime next_forgotten() const;
  // Returns the number of remaining restarts, as of the last call with a time.
  uint32_t left() const { return static_cast<uint32_t>(kMax - restarts_.size()); }

 private:
  // Times of the restarts of the last 60 s.
  std::deque<MonotonicTime> restarts_;
};

// A monitor is restarted as long as the daemon runs: immediately if the last one lived for at least kLived. Otherwise
// the restart waits for a pause that doubles each time.
class MonitorRestarts {
 public:
  static constexpr std::chrono::seconds kLived{5};
  static constexpr std::chrono::milliseconds kFirstPause{100};
  static constexpr std::chrono::milliseconds kLongestPause{30'000};

  // Returns the pause before the next start.
  std::chrono::milliseconds OnDeath(MonotonicTime started, MonotonicTime now);

 private:
  std::chrono::milliseconds next_{0};
};

// A process that could not start for lack of a process, an fd or memory is retried as long as the daemon runs. The
// shortage may pass.
class StartRetries {
 public:
  static constexpr std::chrono::milliseconds kFirstPause{50};
  static constexpr std::chrono::milliseconds kLongestPause{2'000};

  // Returns the pause before the next try.
  std::chrono::milliseconds OnFailure();
  void OnSuccess() { next_ = kFirstPause; }

 private:
  std::chrono::milliseconds next_ = kFirstPause;
};

// A broker that had served is restarted immediately. A broker that had not served gets 5 tries in a row. The pause is
// 100 ms after the first failure and doubles after each further one.
class BrokerRestarts {
 public:
  static constexpr int kMaxFailures = 5;
  static constexpr std::chrono::milliseconds kFirstPause{100};

  // Returns the pause before the next start; nullopt if there shall be none.
  std::optional<std::chrono::milliseconds> OnDeath(bool had_served);

 private:
  // Failures in a row.
  int failures_ = 0;
};

}  // namespace berth

#endif  // DAEMON_SUPERVISOR_PROCESSES_RESTART_POLICY_H_
