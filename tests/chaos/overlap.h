// The proof by histories: how many units of a pool were certainly granted at one time.

#ifndef TESTS_CHAOS_OVERLAP_H_
#define TESTS_CHAOS_OVERLAP_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/chaos/history.h"

namespace berth::testing {

// Units that were held at least from `from` until just before `until`.
struct HeldInterval {
  uint32_t pool = 0;
  uint64_t units = 0;
  int64_t from = 0;
  int64_t until = 0;
};

// Returns the held intervals of one process. Intervals without a release last until `last_alive`, when the process was
// last seen alive. Errors: kDataLoss for events that no process can have written: a release without its grant, or
// before it.
absl::StatusOr<std::vector<HeldInterval>> HeldIntervalsOf(const std::vector<HistoryEvent>& events, int64_t last_alive);

// Returns the most units of `pool` that were granted at one time.
uint64_t GreatestOverlap(const std::vector<HeldInterval>& intervals, uint32_t pool);

}  // namespace berth::testing

#endif  // TESTS_CHAOS_OVERLAP_H_
