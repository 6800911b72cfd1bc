#include "daemon/core/devices/call_watch.h"

namespace berth::core {

void CallWatch::OnAsked(absl::Time now, Bytes bytes) {
  if (asked_.empty()) since_ = now;
  asked_.insert(bytes);
}

void CallWatch::OnAnswered(absl::Time now, Bytes bytes) {
  const auto found = asked_.find(bytes);
  if (found == asked_.end()) return;
  asked_.erase(found);
  since_ = now;
}

absl::Duration CallWatch::allowed() const {
  if (asked_.empty()) return absl::ZeroDuration();
  constexpr double kGiB = 1 << 30;
  return limits_.base + limits_.per_gib * (static_cast<double>(asked_.rbegin()->count()) / kGiB);
}

}  // namespace berth::core
