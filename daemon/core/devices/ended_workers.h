// EndedWorkers: counts the workers that ended while they executed users' commands, and decides whose commands no worker
// gets for a while (docs/design/0055). Arithmetic only: the time is an argument. Thread-compatible.

#ifndef DAEMON_CORE_DEVICES_ENDED_WORKERS_H_
#define DAEMON_CORE_DEVICES_ENDED_WORKERS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "absl/time/time.h"
#include "daemon/base/worker_kind.h"

namespace berth::core {

class EndedWorkers {
 public:
  // A device is stopped after 3 restarts in the same time (WorkerRestarts), so one user alone does not stop it.
  static constexpr size_t kMax = 2;
  static constexpr absl::Duration kWindow = absl::Minutes(1);

  // A user's commands to one of a device's workers.
  struct Key {
    uint32_t device = 0;
    WorkerKind worker_kind = WorkerKind::kMain;
    uint32_t user = 0;

    friend bool operator<(const Key& a, const Key& b) {
      return std::tie(a.device, a.worker_kind, a.user) < std::tie(b.device, b.worker_kind, b.user);
    }
  };

  // Records that a worker has ended while it executed a command of `key`.
  void OnEnded(absl::Time now, const Key& key);

  // Returns until when no worker gets a command of `key`; nothing if a worker may.
  std::optional<absl::Time> HeldUntil(absl::Time now, const Key& key) const;

  // Forgets the ends that are older than kWindow, and those of holds that are over. Returns the keys of these holds.
  std::vector<Key> Forget(absl::Time now);

  // Returns when Forget() next returns a key; InfiniteFuture for never.
  absl::Time next_deadline() const;

 private:
  // Times of the last ends, at most kMax.
  std::map<Key, std::vector<absl::Time>> ends_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_DEVICES_ENDED_WORKERS_H_
