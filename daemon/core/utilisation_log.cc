#include "daemon/core/utilisation_log.h"

#include <algorithm>

namespace berth::core {

void UtilisationLog::Add(absl::Time when, uint32_t percent) {
  if (moments_.empty()) return moments_.push_back({.when = when, .known = {}, .busy = {}});
  Moment next = moments_.back();
  const absl::Duration gap = when - next.when;
  if (gap <= absl::ZeroDuration()) return;
  next.when = when;
  if (gap <= kLongestGap) {
    next.known += gap;
    next.busy += gap * std::min(percent, 100u) / 100;
  }
  moments_.push_back(next);
  if (moments_.size() <= kMoments) return;
  const auto half = moments_.begin() + kMoments / 2;
  auto kept = moments_.begin();
  for (auto it = moments_.begin(); it < half; it += 2) *kept++ = *it;
  moments_.erase(kept, half);
}

std::optional<uint32_t> UtilisationLog::MeanSince(absl::Time since) const {
  // From the first one that has nothing of the time before.
  const auto first = std::lower_bound(moments_.begin(), moments_.end(), since,
                                      [](const Moment& moment, absl::Time time) { return moment.when < time; });
  if (first == moments_.end()) return std::nullopt;
  const absl::Duration known = moments_.back().known - first->known;
  if (known <= absl::ZeroDuration()) return std::nullopt;
  const double share = absl::FDivDuration(moments_.back().busy - first->busy, known);
  return static_cast<uint32_t>(share * 100 + 0.5);
}

}  // namespace berth::core
