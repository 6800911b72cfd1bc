// UtilisationLog: the fraction of time that a device was busy since any given moment, from the driver's reports about
// once a second. Bounded: it stores fewer moments of the distant past, so older values are less exact.
//
// Pure and thread-compatible.

#ifndef DAEMON_CORE_DEVICES_UTILISATION_LOG_H_
#define DAEMON_CORE_DEVICES_UTILISATION_LOG_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"

namespace berth::core {

class UtilisationLog {
 public:
  // Number of stored moments. Beyond it the log drops the moment whose neighbours are closest together relative to
  // their age. A value for any time is off by some hundredths of that time.
  static constexpr size_t kMoments = 512;
  // Two readings further apart than this leave a gap without data.
  static constexpr absl::Duration kLongestGap = absl::Seconds(5);

  // Adds the driver's report at `when` about the time since its previous report. Ignores a report older than the last.
  void Add(absl::Time when, uint32_t percent);

  // Returns the percent of time since `since` that the device was busy, over the known time; empty if none is known.
  std::optional<uint32_t> MeanSince(absl::Time since) const;

  size_t moments() const { return moments_.size(); }

 private:
  // Totals over the known time before the moment.
  struct Moment {
    absl::Time when;
    absl::Duration known;
    absl::Duration busy;
  };
  // Sorted by time.
  std::vector<Moment> moments_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_DEVICES_UTILISATION_LOG_H_
