#include "daemon/core/sessions/tenant_use.h"

#include <berth/error.h>

#include "gtest/gtest.h"

namespace berth::core {
namespace {

const Tenant kUser = {.uid = 1000};
const Tenant kContainer = {.uid = 1000, .container = "/a"};
const Tenant kOther = {.uid = 1001};

TEST(QuotaTableTest, MostSpecificQuotaWinsPerField) {
  const QuotaTable table = {.all = {.permits = 8, .waiters = 9, .sessions = 10},
                            .users = {{1000, {.permits = 4, .waiters = 5}}},
                            .containers = {{1000, {.permits = 2}}}};
  EXPECT_EQ(table.Of(kUser), (TenantQuota{.permits = 4, .waiters = 5, .sessions = 10}));
  EXPECT_EQ(table.Of(kContainer), (TenantQuota{.permits = 2, .waiters = 5, .sessions = 10}));
  EXPECT_EQ(table.Of(kOther), table.all);
}

TEST(TenantUseTest, EveryFieldHasNameAndOwnValueWins) {
  TenantQuota own, other;
  uint64_t value = 0;
  ForEachQuota(own, [&](const char*, std::optional<uint64_t>& quota_value) { quota_value = ++value; });
  ForEachQuota(other, [&](const char*, std::optional<uint64_t>& quota_value) { quota_value = 100 + ++value; });
  EXPECT_EQ(own.Or(other), own);
  EXPECT_EQ(TenantQuota().Or(other), other);
}

TEST(TenantUseTest, UnitsAreCountedOverAllPools) {
  TenantUse use({.all = {.permits = 3}});
  use.Take(kUser, 2);
  EXPECT_TRUE(use.MayHave(kUser, 1));
  EXPECT_FALSE(use.MayHave(kUser, 2));
  EXPECT_TRUE(use.MayHave(kOther, 3)) << "another tenant has its own";
  EXPECT_TRUE(use.MayHave(kContainer, 3)) << "and so has a container";
  use.Give(kUser, 2);
  EXPECT_TRUE(use.MayHave(kUser, 3));
  EXPECT_TRUE(use.uses().empty()) << "a tenant without use has no entry";
}

TEST(TenantUseTest, UnitsAboveQuotaAreRejectedWithLimit) {
  const TenantUse use({.all = {.permits = 3}});
  EXPECT_TRUE(use.CheckUnits(kUser, "p", 3).ok());
  const absl::Status never = use.CheckUnits(kUser, "p", 4);
  EXPECT_TRUE(IsRefusal(never, Reason::kOverCap)) << never;
  EXPECT_EQ(NamedValueOf(never, "asked"), "4");
  EXPECT_EQ(NamedValueOf(never, "cap"), "3");
}

TEST(TenantUseTest, WaiterBeyondQuotaIsRejected) {
  TenantUse use({.all = {.waiters = 1}});
  EXPECT_TRUE(use.CheckMayWait(kUser).ok());
  use.BeginWait(kUser, /*for_units=*/false);
  const absl::Status full = use.CheckMayWait(kUser);
  EXPECT_TRUE(IsRefusal(full, Reason::kLimit)) << full;
  EXPECT_EQ(NamedValueOf(full, "current"), "1");
  EXPECT_TRUE(use.CheckMayWait(kOther).ok());
  use.EndWait(kUser, /*for_units=*/false);
  EXPECT_TRUE(use.CheckMayWait(kUser).ok());
}

TEST(TenantUseTest, OnlyUnitWaitersWithQuotaPress) {
  TenantUse use({.users = {{1000, {.permits = 1}}}});
  use.TakeChanged();
  use.BeginWait(kOther, /*for_units=*/true);
  use.BeginWait(kUser, /*for_units=*/false);
  EXPECT_FALSE(use.AnyPresses());
  EXPECT_FALSE(use.TakeChanged());
  use.BeginWait(kUser, /*for_units=*/true);
  EXPECT_TRUE(use.Presses(kUser));
  EXPECT_TRUE(use.TakeChanged()) << "what it keeps is wanted from now on";
  use.Take(kUser, 1);
  EXPECT_TRUE(use.TakeChanged()) << "who is kept waiting for it in another pool may be served";
  use.Take(kOther, 1);
  EXPECT_FALSE(use.TakeChanged()) << "it has no quota";
  use.Give(kOther, 1);
  use.Give(kUser, 1);
  EXPECT_TRUE(use.TakeChanged()) << "who waits in another pool may be served";
  use.EndWait(kUser, /*for_units=*/true);
  EXPECT_FALSE(use.AnyPresses());
  use.SetQuotas({.all = {.permits = 5}});
  EXPECT_TRUE(use.Presses(kOther)) << "a quota counts for who waits already";
  EXPECT_TRUE(use.CheckInvariants(use.uses()).ok());
  EXPECT_FALSE(use.CheckInvariants({}).ok());
}

}  // namespace
}  // namespace berth::core
