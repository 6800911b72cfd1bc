// When the daemon's processes are started again, and when no more. Arithmetic only: the time comes in.

#ifndef DAEMON_VAULT_RESTART_POLICY_H_
#define DAEMON_VAULT_RESTART_POLICY_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

namespace berth {

using MonotonicTime = std::chrono::steady_clock::time_point;

// A worker is restarted at once, 3 times in any 60 s.
class WorkerRestarts {
 public:
  static constexpr size_t kMax = 3;
  static constexpr std::chrono::seconds kWindow{60};

  // Returns whether the worker that died at `now` is to be started again.
  bool OnDeath(MonotonicTime now);

  // Forgets the restarts that are older than the window at `now`.
  void Forget(MonotonicTime now);
  // When Forget() has something to forget; max() for never.
  MonotonicTime next_forgotten() const;
  // Restarts that are not used up, as of the last call with a time.
  uint32_t left() const { return static_cast<uint32_t>(kMax - restarts_.size()); }

 private:
  // Of the last 60 s.
  std::deque<MonotonicTime> restarts_;
};

// A monitor is started again as long as the daemon runs: at once after one that lived for a while, else with a pause
// that doubles.
class MonitorRestarts {
 public:
  static constexpr std::chrono::seconds kLived{5};
  static constexpr std::chrono::milliseconds kFirstPause{100};
  static constexpr std::chrono::milliseconds kLongestPause{30'000};

  // Returns how long to pause before the next start.
  std::chrono::milliseconds OnDeath(MonotonicTime started, MonotonicTime now);

 private:
  std::chrono::milliseconds next_{0};
};

// A process that could not be started, for want of a process, an fd or memory, is tried again as long as the daemon
// runs: what is wanting now is there later.
class StartRetries {
 public:
  static constexpr std::chrono::milliseconds kFirstPause{50};
  static constexpr std::chrono::milliseconds kLongestPause{2'000};

  // Returns how long to pause before the next try.
  std::chrono::milliseconds OnFailure();
  void OnSuccess() { next_ = kFirstPause; }

 private:
  std::chrono::milliseconds next_ = kFirstPause;
};

// A broker that had served is restarted at once. One that had not is given 5 tries, with 100 ms after the
// first and twice as long after each further.
class BrokerRestarts {
 public:
  static constexpr int kMaxFailures = 5;
  static constexpr std::chrono::milliseconds kFirstPause{100};

  // Returns how long to pause before the next start; nothing if there shall be none.
  std::optional<std::chrono::milliseconds> OnDeath(bool had_served);

 private:
  // In a row.
  int failures_ = 0;
};

}  // namespace berth

#endif  // DAEMON_VAULT_RESTART_POLICY_H_
