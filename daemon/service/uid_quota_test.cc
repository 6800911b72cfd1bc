#include "daemon/service/uid_quota.h"

#include <utility>
#include <vector>

#include "common/error.h"
#include "gtest/gtest.h"

namespace berth::service {
namespace {

TEST(UidQuotaTest, EveryUserHasAsManyAndIsToldTheLimit) {
  UidQuota quota("places", 2);
  std::vector<UidQuota::Place> taken;
  for (const uint32_t uid : {1000u, 1000u, 2000u, 2000u}) taken.push_back(*quota.Take(uid));
  const absl::Status refused = quota.Take(1000).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_TRUE(IsRefusal(refused, Reason::kLimit));
  EXPECT_EQ(refused.message(), "places of uid 1000: 2, limit 2");
}

TEST(UidQuotaTest, APlaceComesBackOnceWhereverItWasMovedTo) {
  UidQuota quota("places", 1);
  {
    UidQuota::Place first = *quota.Take(1000);
    UidQuota::Place second = std::move(first);
    UidQuota::Place third;
    third = std::move(second);
    EXPECT_FALSE(quota.Take(1000).ok());
  }
  EXPECT_TRUE(quota.Take(1000).ok());
  EXPECT_TRUE(quota.Take(1000).ok()) << "what is not kept is given back";
}

TEST(UidQuotaTest, AQuotaOfNoneGivesNone) {
  UidQuota quota("places", 0);
  EXPECT_FALSE(quota.Take(1000).ok());
  EXPECT_FALSE(quota.Take(1000).ok());
}

}  // namespace
}  // namespace berth::service
