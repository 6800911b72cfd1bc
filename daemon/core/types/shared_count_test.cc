#include "daemon/core/types/shared_count.h"

#include <cstdint>
#include <vector>

#include <berth/error.h>

#include "absl/strings/match.h"
#include "daemon/core/types/user_share.h"
#include "gtest/gtest.h"

namespace berth::core {
namespace {

constexpr Claimant kA{.user = 1000};
constexpr Claimant kB{.user = 1001};
constexpr Claimant kOperator{.user = 0, .of_operator = true};

uint64_t TakeAll(SharedCount& count, const Claimant& claimant) {
  uint64_t taken = 0;
  for (; count.Check(claimant).ok(); ++taken) count.Take(claimant);
  return taken;
}

TEST(UserShareTest, UserHasHalfOfRemainder) {
  static_assert(UserShare(16'384, 0) == 8'192);
  static_assert(UserShare(16'384, 8'192) == 4'096);
  static_assert(UserShare(2, 0) == 1 && UserShare(2, 1) == 1);
  static_assert(UserShare(1, 0) == 1 && UserShare(1, 1) == 0);
  // A lowered limit.
  static_assert(UserShare(10, 12) == 0);
}

TEST(SharedCountTest, EachNewUserFindsPlaces) {
  SharedCount count("places", 1'024, 8);
  EXPECT_EQ(TakeAll(count, kA), 512u);
  EXPECT_EQ(TakeAll(count, kB), 256u);
  for (uint32_t user = 2'000; user < 2'008; ++user) EXPECT_GT(TakeAll(count, {.user = user}), 0u) << user;
}

TEST(SharedCountTest, CompetingUsersEndWithEqualShares) {
  SharedCount count("places", 900, 0);
  TakeAll(count, kA);
  TakeAll(count, kB);
  // In each round both users release ten places and take as many as they may.
  for (int round = 0; round < 200; ++round) {
    for (const Claimant& user : {kA, kB}) {
      count.Give(user, 10);
      TakeAll(count, user);
    }
  }
  EXPECT_NEAR(static_cast<double>(count.CountOf(kA.user)), 300, 10);
  EXPECT_NEAR(static_cast<double>(count.CountOf(kB.user)), 300, 10);
}

TEST(SharedCountTest, OperatorsHaveTheirOwnReserve) {
  SharedCount count("places", 4, 2);
  for (uint32_t user = 1; user <= 8; ++user) TakeAll(count, {.user = user});
  EXPECT_EQ(count.of_users(), 4u);
  EXPECT_EQ(TakeAll(count, kOperator), 2u);
  EXPECT_EQ(count.of_operators(), 2u);
  const absl::Status refused = count.Check(kOperator);
  EXPECT_TRUE(IsRefusal(refused, Reason::kLimit)) << refused;
  EXPECT_EQ(refused.message(), "places: operators have 2, limit 2");
  count.Give(kOperator, 2);
  EXPECT_EQ(count.of_users(), 4u) << "what operators give back is theirs";
}

TEST(SharedCountTest, RefusalNamesUserCountAndShare) {
  SharedCount count("waiters_per_pool", 8, 0, "permit pool p");
  TakeAll(count, kB);
  TakeAll(count, kA);
  const absl::Status refused = count.Check(kA);
  EXPECT_EQ(refused.message(), "permit pool p: waiters_per_pool: user 1000 has 2, share 2; all users have 6 of 8");
  EXPECT_EQ(NamedValueOf(refused, "what"), "waiters_per_pool");
  EXPECT_EQ(NamedValueOf(refused, "current"), "2");
  EXPECT_EQ(NamedValueOf(refused, "limit"), "2");
}

TEST(SharedCountTest, RefusalEndsWithWayOut) {
  SharedCount count("creates_per_worker", 2, 1, "device 0", "use another device");
  TakeAll(count, kA);
  TakeAll(count, kOperator);
  EXPECT_EQ(count.Check(kA).message(),
            "device 0: creates_per_worker: user 1000 has 1, share 1; all users have 1 of 2; use another device");
  EXPECT_EQ(count.Check(kOperator).message(),
            "device 0: creates_per_worker: operators have 1, limit 1; use another device");
}

TEST(SharedCountTest, TakenPlacesAreJudgedUnchanged) {
  SharedCount count("places", 4, 0);
  count.Take(kA, 2);
  EXPECT_TRUE(count.CheckTaken(kA).ok());
  count.Take(kA);
  const absl::Status refused = count.CheckTaken(kA);
  EXPECT_EQ(refused.message(), "places: user 1000 has 2, share 2; all users have 2 of 4");
  count.Give(kA);
  EXPECT_FALSE(count.Check(kA).ok());
}

TEST(SharedCountTest, SeveralPlacesAreTakenTogetherOrNotAtAll) {
  SharedCount count("answer_bytes", 100, 0);
  EXPECT_TRUE(count.Check(kA, 50).ok());
  EXPECT_FALSE(count.Check(kA, 51).ok());
  EXPECT_FALSE(count.Check(kA, UINT64_MAX).ok());
}

}  // namespace
}  // namespace berth::core
