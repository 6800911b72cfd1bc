// What histories prove: how many units of a pool were certainly out at one time.

#ifndef TESTS_CHAOS_OVERLAP_H_
#define TESTS_CHAOS_OVERLAP_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/chaos/history.h"

namespace berth::testing {

// Units that were held at least from `from` until just before `until`.
struct Holding {
  uint32_t pool = 0;
  uint64_t units = 0;
  int64_t from = 0;
  int64_t until = 0;
};

// The holdings of one process. What it did not give back it held until `last_alive`: when it was last seen alive.
// Errors: kDataLoss for events that no process can have written: a release without its grant, or before it.
absl::StatusOr<std::vector<Holding>> HoldingsOf(const std::vector<HistoryEvent>& events, int64_t last_alive);

// The most units of `pool` that were out at one time, whatever else was.
uint64_t GreatestOverlap(const std::vector<Holding>& holdings, uint32_t pool);

}  // namespace berth::testing

#endif  // TESTS_CHAOS_OVERLAP_H_
