// The expected share of a tenant in the simulated markets of permits.

#ifndef TESTS_SIM_FAIR_SHARE_H_
#define TESTS_SIM_FAIR_SHARE_H_

#include <cstddef>
#include <cstdint>

#include "gtest/gtest.h"

namespace berth::sim {

// Grants 400 more requests of the waiters at `market`. Expects user `uid` with that weight, beside two others of weight
// 1, to stay within one grant of each tenant of its due share.
template <typename Market, typename Draw>
void ExpectItsShareAndNoBurst(Market* market, uint32_t uid, uint32_t weight, Draw& draw) {
  const size_t from = market->granted.size();
  double had = 0;
  for (size_t i = from; i < from + 400; ++i) {
    market->Release(draw(market->held.size()));
    had += market->granted[i].ask.uid == uid ? 1 : 0;
    EXPECT_NEAR(had, (i + 1 - from) * weight / (weight + 2.0), 3);
  }
}

}  // namespace berth::sim

#endif  // TESTS_SIM_FAIR_SHARE_H_
