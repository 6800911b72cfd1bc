// UtilisationLog: how much of the time since any moment a device was at something, from what its driver says every
// second or so. Bounded: of long ago it remembers fewer moments, so that an older one is known less exactly.
//
// Pure and thread-compatible.

#ifndef DAEMON_CORE_UTILISATION_LOG_H_
#define DAEMON_CORE_UTILISATION_LOG_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"

namespace berth::core {

class UtilisationLog {
 public:
  // Moments that are remembered; past them the one goes whose neighbours are nearest to each other, for its age: what
  // is known of a time is off by some hundredths of it.
  static constexpr size_t kMoments = 512;
  // Between two readings that are further apart nothing is known.
  static constexpr absl::Duration kLongestGap = absl::Seconds(5);

  // The driver says at `when` of what has been since it was asked before. An older reading than the last is ignored.
  void Add(absl::Time when, uint32_t percent);

  // Percent of the time since `since` in which it was at something, as far as that is known; nothing where it is not.
  std::optional<uint32_t> MeanSince(absl::Time since) const;

  size_t moments() const { return moments_.size(); }

 private:
  // Of the whole time up to it, as far as it is known.
  struct Moment {
    absl::Time when;
    absl::Duration known;
    absl::Duration busy;
  };
  // By their time.
  std::vector<Moment> moments_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_UTILISATION_LOG_H_
