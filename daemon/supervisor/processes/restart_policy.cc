#include "daemon/supervisor/processes/restart_policy.h"

#include <algorithm>

namespace berth {

bool WorkerRestarts::OnDeath(MonotonicTime now) {
  Forget(now);
  if (restarts_.size() >= kMax) return false;
  restarts_.push_back(now);
  return true;
}

void WorkerRestarts::Forget(MonotonicTime now) {
  while (!restarts_.empty() && now - restarts_.front() >= kWindow) restarts_.pop_front();
}

MonotonicTime WorkerRestarts::next_forgotten() const {
  return restarts_.empty() ? MonotonicTime::max() : restarts_.front() + kWindow;
}

std::chrono::milliseconds MonitorRestarts::OnDeath(MonotonicTime started, MonotonicTime now) {
  if (now - started >= kLived) next_ = std::chrono::milliseconds(0);
  const std::chrono::milliseconds pause = next_;
  next_ = std::min(kLongestPause, std::max(kFirstPause, 2 * next_));
  return pause;
}

std::chrono::milliseconds StartRetries::OnFailure() {
  const std::chrono::milliseconds pause = next_;
  next_ = std::min(kLongestPause, 2 * next_);
  return pause;
}

std::optional<std::chrono::milliseconds> BrokerRestarts::OnDeath(bool had_served) {
  if (had_served) {
    failures_ = 0;
    return std::chrono::milliseconds(0);
  }
  if (++failures_ >= kMaxFailures) return std::nullopt;
  return kFirstPause * (1 << (failures_ - 1));
}

}  // namespace berth
