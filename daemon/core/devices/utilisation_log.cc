#include "daemon/core/devices/utilisation_log.h"

#include <algorithm>
#include <cstddef>

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
  // Distance of the neighbours relative to the moment's age.
  const auto distance = [&](size_t i) {
    return absl::FDivDuration(moments_[i + 1].when - moments_[i - 1].when, when - moments_[i].when);
  };
  size_t nearest = 1;
  for (size_t i = 2; i + 1 < moments_.size(); ++i) {
    if (distance(i) < distance(nearest)) nearest = i;
  }
  moments_.erase(moments_.begin() + static_cast<std::ptrdiff_t>(nearest));
}

std::optional<uint32_t> UtilisationLog::MeanSince(absl::Time since) const {
  // Starts at the first moment that is not before `since`.
  const auto first = std::lower_bound(moments_.begin(), moments_.end(), since,
                                      [](const Moment& moment, absl::Time time) { return moment.when < time; });
  if (first == moments_.end()) return std::nullopt;
  const absl::Duration known = moments_.back().known - first->known;
  if (known <= absl::ZeroDuration()) return std::nullopt;
  const double share = absl::FDivDuration(moments_.back().busy - first->busy, known);
  return static_cast<uint32_t>(share * 100 + 0.5);
}

}  // namespace berth::core
