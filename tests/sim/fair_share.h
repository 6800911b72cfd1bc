// What the simulated markets of permits expect of a tenant's share.

#ifndef TESTS_SIM_FAIR_SHARE_H_
#define TESTS_SIM_FAIR_SHARE_H_

#include <cstddef>
#include <cstdint>

#include "gtest/gtest.h"

namespace berth::sim {

// Has 400 more granted of those who wait at `market` already, and expects user `uid` of that weight, beside two others
// of weight 1, to be never more than one grant of each tenant away from what is due.
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
