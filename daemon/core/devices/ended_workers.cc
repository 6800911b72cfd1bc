#include "daemon/core/devices/ended_workers.h"

#include <algorithm>

namespace berth::core {

void EndedWorkers::OnEnded(absl::Time now, const Key& key) {
  std::vector<absl::Time>& ends = ends_[key];
  std::erase_if(ends, [now](absl::Time end) { return now - end >= kWindow; });
  if (ends.size() == kMax) ends.erase(ends.begin());
  ends.push_back(now);
}

std::optional<absl::Time> EndedWorkers::HeldUntil(absl::Time now, const Key& key) const {
  const auto found = ends_.find(key);
  if (found == ends_.end() || found->second.size() < kMax) return std::nullopt;
  const absl::Time until = found->second.back() + kWindow;
  return until > now ? std::optional(until) : std::nullopt;
}

std::vector<EndedWorkers::Key> EndedWorkers::Forget(absl::Time now) {
  std::vector<Key> over;
  for (auto it = ends_.begin(); it != ends_.end();) {
    if (now - it->second.back() < kWindow) {
      ++it;
      continue;
    }
    if (it->second.size() == kMax) over.push_back(it->first);
    it = ends_.erase(it);
  }
  return over;
}

absl::Time EndedWorkers::next_deadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [key, ends] : ends_) {
    if (ends.size() == kMax) next = std::min(next, ends.back() + kWindow);
  }
  return next;
}

}  // namespace berth::core
