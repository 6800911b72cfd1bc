#include "client/testing/leak_listener.h"

#include "gtest/gtest.h"

namespace berth::testing {
namespace {

TEST(LeakListenerTest, HoldingsAboveBaselineAreLeak) {
  const Holdings before = {.permits = 1, .blocks = 2, .bytes = 4 << 20, .reservations = 0};
  EXPECT_EQ(DescribeLeak(before, before), "");
  EXPECT_EQ(DescribeLeak(before, {}), "") << "less is none";
  EXPECT_EQ(DescribeLeak({}, {.permits = 1}), "1 permit");
  EXPECT_EQ(DescribeLeak(before, {.permits = 3, .blocks = 4, .bytes = 16 << 20, .reservations = 1}),
            "2 permits, 2 blocks of 12 MiB, 1 reservation");
}

TEST(LeakListenerTest, TestWithoutBerthHoldsNothing) {
  const Holdings now = Holdings::Now();
  EXPECT_EQ(DescribeLeak({}, now), "");
}

}  // namespace
}  // namespace berth::testing
