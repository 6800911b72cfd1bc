#include "daemon/service/limits/uid_quota.h"

#include <cstdint>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "gtest/gtest.h"

namespace berth::service {
namespace {

TEST(UidQuotaTest, EveryUserHasSameLimit) {
  UidQuota quota("places", 2);
  std::vector<UidQuota::Place> taken;
  for (const uint32_t uid : {1000u, 1000u, 2000u, 2000u}) taken.push_back(*quota.Take(uid));
  const absl::Status refused = quota.Take(1000).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_TRUE(IsRefusal(refused, Reason::kLimit));
  EXPECT_EQ(refused.message(), "places of uid 1000: 2, limit 2");
}

TEST(UidQuotaTest, UsersShareTotal) {
  UidQuota quota("places", 100, 8);
  std::vector<UidQuota::Place> taken;
  const auto take_all = [&](uint32_t uid) {
    int count = 0;
    for (auto place = quota.Take(uid); place.ok(); place = quota.Take(uid), ++count) taken.push_back(*std::move(place));
    return count;
  };
  EXPECT_EQ(take_all(1000), 4);
  EXPECT_EQ(take_all(1001), 2);
  EXPECT_EQ(take_all(1002), 1);
  taken.clear();
  EXPECT_EQ(take_all(1001), 4);
}

TEST(UidQuotaTest, MovedPlaceIsReturnedOnce) {
  UidQuota quota("places", 1);
  {
    UidQuota::Place first = *quota.Take(1000);
    UidQuota::Place second = std::move(first);
    UidQuota::Place third;
    third = std::move(second);
    EXPECT_FALSE(quota.Take(1000).ok());
  }
  EXPECT_TRUE(quota.Take(1000).ok());
  EXPECT_TRUE(quota.Take(1000).ok()) << "an unused descriptor is returned";
}

TEST(UidQuotaTest, ZeroQuotaGrantsNothing) {
  UidQuota quota("places", 0);
  EXPECT_FALSE(quota.Take(1000).ok());
  EXPECT_FALSE(quota.Take(1000).ok());
}

}  // namespace
}  // namespace berth::service
