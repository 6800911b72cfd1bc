#include "daemon/core/sessions/tenant_use.h"

#include <berth/error.h>

#include "daemon/core/types/caller.h"
#include "daemon/core/types/shared_count.h"
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
  EXPECT_TRUE(use.CheckMayWait(kUser, {}, 0).ok());
  use.BeginWait(kUser, {.for_units = false});
  const absl::Status full = use.CheckMayWait(kUser, {}, 0);
  EXPECT_TRUE(IsRefusal(full, Reason::kLimit)) << full;
  EXPECT_EQ(NamedValueOf(full, "current"), "1");
  EXPECT_TRUE(use.CheckMayWait(kOther, {}, 0).ok());
  use.EndWait(kUser, {.for_units = false});
  EXPECT_TRUE(use.CheckMayWait(kUser, {}, 0).ok());
}

TEST(TenantUseTest, OnlyUnitWaitersWithQuotaPress) {
  TenantUse use({.users = {{1000, {.permits = 1}}}});
  use.TakeChanged();
  use.BeginWait(kOther, {.for_units = true});
  use.BeginWait(kUser, {.for_units = false});
  EXPECT_FALSE(use.AnyPresses());
  EXPECT_FALSE(use.TakeChanged());
  use.BeginWait(kUser, {.for_units = true});
  EXPECT_TRUE(use.Presses(kUser));
  EXPECT_TRUE(use.TakeChanged()) << "what it keeps is wanted from now on";
  use.Take(kUser, 1);
  EXPECT_TRUE(use.TakeChanged()) << "who is kept waiting for it in another pool may be served";
  use.Take(kOther, 1);
  EXPECT_FALSE(use.TakeChanged()) << "it has no quota";
  use.Give(kOther, 1);
  use.Give(kUser, 1);
  EXPECT_TRUE(use.TakeChanged()) << "who waits in another pool may be served";
  use.EndWait(kUser, {.for_units = true});
  EXPECT_FALSE(use.AnyPresses());
  use.SetQuotas({.all = {.permits = 5}});
  EXPECT_TRUE(use.Presses(kOther)) << "a quota counts for who waits already";
  const SharedCount weightless("waiting_bytes", SharedCount::kUnlimited, SharedCount::kUnlimited);
  EXPECT_TRUE(use.CheckInvariants(use.uses(), weightless).ok());
  EXPECT_FALSE(use.CheckInvariants({}, weightless).ok());
}

TEST(TenantUseTest, WaitersAreLimitedByTheirWeight) {
  TenantUse use({}, SharedCount("waiting_bytes", 1'000, 100));
  const Claimant user{.user = 1}, other{.user = 2}, op{.user = 0, .of_operator = true};
  EXPECT_TRUE(use.CheckMayWait(kUser, user, 500).ok());
  use.BeginWait(kUser, {.claimant = user, .weight = 400});
  const absl::Status full = use.CheckMayWait(kUser, user, 101);
  EXPECT_TRUE(IsRefusal(full, Reason::kLimit)) << full;
  EXPECT_EQ(NamedValueOf(full, "what"), "waiting_bytes");
  EXPECT_EQ(NamedValueOf(full, "current"), "400");
  EXPECT_EQ(NamedValueOf(full, "limit"), "500");
  EXPECT_TRUE(use.CheckMayWait(kUser, user, 100).ok());
  EXPECT_TRUE(use.CheckMayWait(kOther, other, 300).ok());
  EXPECT_FALSE(use.CheckMayWait(kOther, other, 301).ok());
  EXPECT_TRUE(use.CheckMayWait(kUser, op, 100).ok());
  use.EndWait(kUser, {.claimant = user, .weight = 400});
  EXPECT_TRUE(use.CheckInvariants({}, SharedCount("waiting_bytes", 0, 0)).ok());
}

}  // namespace
}  // namespace berth::core
