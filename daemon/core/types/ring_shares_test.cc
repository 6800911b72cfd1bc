#include "daemon/core/types/ring_shares.h"

#include <cstdint>
#include <map>
#include <numeric>
#include <string>

#include "gtest/gtest.h"

namespace berth::core {
namespace {

constexpr RingKey kOperators = {.part = RingPart::kOperators};
constexpr RingKey Arrivals(uint32_t account) { return {.part = RingPart::kAdmission, .account = account}; }
constexpr RingKey User(uint32_t account) { return {.account = account}; }

using Amounts = std::map<RingKey, uint64_t>;

uint64_t Sum(const Amounts& amounts) {
  return std::accumulate(amounts.begin(), amounts.end(), uint64_t{0},
                         [](uint64_t sum, const auto& amount) { return sum + amount.second; });
}

struct Case {
  std::string name;
  uint64_t total;
  Amounts held;
  Amounts limits;
};

class RingSharesTest : public testing::TestWithParam<Case> {};

TEST_P(RingSharesTest, SharesAreLimitedFairly) {
  EXPECT_EQ(LimitRing(GetParam().total, GetParam().held), GetParam().limits);
  const uint64_t held = Sum(GetParam().held);
  EXPECT_EQ(Sum(LimitRing(GetParam().total, GetParam().held)), std::min(held, GetParam().total));
}

INSTANTIATE_TEST_SUITE_P(
    Rings, RingSharesTest,
    testing::Values(
        Case{"Empty", 100, {}, {}},
        Case{"AllFits", 100, {{User(1), 60}, {kOperators, 40}}, {{User(1), 60}, {kOperators, 40}}},
        Case{"OneUserHasAll", 100, {{User(1), 500}}, {{User(1), 100}}},
        Case{"FloodLeavesTheSmallAlone", 100, {{User(1), 900}, {User(2), 30}}, {{User(1), 70}, {User(2), 30}}},
        Case{"TwoFloodsHalveTheRest", 100, {{User(1), 900}, {User(2), 20}, {User(3), 200}},
             {{User(1), 40}, {User(2), 20}, {User(3), 40}}},
        Case{"UserFloodLeavesOperatorsTheirThird", 90, {{User(1), 900}, {kOperators, 500}},
             {{User(1), 60}, {kOperators, 30}}},
        Case{"OperatorFloodLeavesUsersTheirs", 90, {{User(1), 60}, {kOperators, 500}},
             {{User(1), 60}, {kOperators, 30}}},
        Case{"OperatorsTakeWhatUsersDoNotNeed", 90, {{User(1), 10}, {kOperators, 500}},
             {{User(1), 10}, {kOperators, 80}}},
        Case{"ThreePartsThatAreAllFull", 100,
             {{User(1), 900}, {User(2), 900}, {Arrivals(1), 900}, {Arrivals(2), 5}, {kOperators, 900}},
             {{User(1), 25}, {User(2), 25}, {Arrivals(1), 20}, {Arrivals(2), 5}, {kOperators, 25}}},
        Case{"ManyAccountsDoNotTouchOperators", 100,
             {{User(1), 90}, {User(2), 90}, {User(3), 90}, {User(4), 90}, {kOperators, 30}},
             {{User(1), 17}, {User(2), 17}, {User(3), 18}, {User(4), 18}, {kOperators, 30}}}),
    [](const auto& info) { return info.param.name; });

TEST(RingKeyTest, DaemonUserOutsideContainersIsOperator) {
  EXPECT_EQ(RingKeyOf({.uid = 0}, 0), kOperators);
  EXPECT_EQ(RingKeyOf({.uid = 0, .container = "/c"}, 0), User(0));
  EXPECT_EQ(RingKeyOf({.uid = 1000}, 0), User(1000));
  EXPECT_EQ(RingKeyOf({.uid = 100'000, .charged_account = Account{.uid = 1000}}, 0), User(1000))
      << "a user's subordinate uids share the user's share";
}

TEST(RingPlacesTest, AccountTakesHalfOperatorsTakeAll) {
  RingPlaces places(4);
  EXPECT_TRUE(places.Take(User(1)));
  EXPECT_TRUE(places.Take(User(1)));
  EXPECT_FALSE(places.Take(User(1)));
  EXPECT_TRUE(places.Take(User(2)));
  EXPECT_TRUE(places.Take(kOperators));
  EXPECT_FALSE(places.Take(User(2)));
  for (const RingKey& key : {User(1), User(1), User(2), kOperators}) places.Return(key);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(places.Take(kOperators));
  EXPECT_FALSE(places.Take(kOperators));
}

TEST(RingPlacesTest, AccountTakesHalfOverAllParts) {
  RingPlaces places(4);
  EXPECT_TRUE(places.Take(User(1)));
  EXPECT_TRUE(places.Take(Arrivals(1)));
  EXPECT_FALSE(places.Take(User(1)));
  EXPECT_FALSE(places.Take(Arrivals(1)));
  EXPECT_TRUE(places.Take(User(2)));
  EXPECT_TRUE(places.Take(kOperators));
  for (const RingKey& key : {User(1), Arrivals(1), User(2), kOperators}) places.Return(key);
  EXPECT_TRUE(places.Take(Arrivals(1)));
  EXPECT_TRUE(places.Take(Arrivals(1)));
  EXPECT_FALSE(places.Take(User(1)));
}

}  // namespace
}  // namespace berth::core
