#include "daemon/core/modules/module_table.h"

#include <string>

#include "gtest/gtest.h"

namespace berth::core {
namespace {

const Tenant kOne{.uid = 1};
const Tenant kOther{.uid = 2};
const Tenant kThird{.uid = 3};

Digest DigestOf(uint8_t name) {
  Digest digest;
  digest.bits[0] = name;
  return digest;
}

class ModuleTableTest : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_TRUE(table_.CheckInvariants().ok()) << table_.CheckInvariants(); }

  Module& Ready(const Tenant& tenant, uint8_t key, uint64_t bytes) {
    return table_.Add({.tenant = tenant, .key = DigestOf(key), .bytes = Bytes(bytes), .content = DigestOf(key)},
                      ModuleState::kOnDisk, now_);
  }
  // Returns the keys to evict; "none" if no eviction suffices.
  std::string Leaving(const Tenant& tenant, uint64_t modules, uint64_t bytes) {
    const auto leaving = table_.PlanCapacity(tenant, modules, Bytes(bytes));
    if (!leaving.has_value()) return "none";
    std::string keys;
    for (const ModuleId id : *leaving) keys += static_cast<char>('0' + table_.Find(id)->record.key.bits[0]);
    return keys;
  }

  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  ModuleTable table_{{.largest = Bytes(50), .total = Bytes(100), .tenant = Bytes(60), .modules = 5}};
};

TEST_F(ModuleTableTest, LeastRecentlyUsedModuleIsEvictedAtLimit) {
  Ready(kOne, 1, 30);
  Ready(kOne, 2, 20);
  Ready(kOther, 3, 40);
  EXPECT_EQ(Leaving(kOther, 1, 10), "");
  // The requester itself would have the largest usage.
  EXPECT_EQ(Leaving(kOther, 1, 11), "3");
  EXPECT_EQ(Leaving(kThird, 1, 11), "1");
  table_.Touch(*table_.FindByKey(kOne, DigestOf(1)), now_);
  EXPECT_EQ(Leaving(kThird, 1, 11), "2");
  // The tenant's own limit applies first, then the global limits.
  EXPECT_EQ(Leaving(kOne, 1, 15), "2");
}

TEST_F(ModuleTableTest, UserLosesNoModulesToLargerUser) {
  Ready(kOne, 1, 1);
  for (const uint8_t key : {2, 3, 4, 5}) Ready(kOther, key, 1);
  EXPECT_EQ(Leaving(kOther, 1, 1), "2") << "the user's own, though another's is older";
  EXPECT_EQ(Leaving(kThird, 1, 1), "2");
  EXPECT_EQ(Leaving({.uid = 2, .container = "c"}, 1, 1), "2") << "a container is its user's";
}

TEST_F(ModuleTableTest, ModuleLargerThanOthersTotalEvictsNone) {
  Ready(kOne, 1, 50);
  EXPECT_EQ(Leaving(kOther, 1, 51), "none");
  EXPECT_EQ(Leaving(kOther, 1, 50), "");
  Ready(kThird, 2, 30);
  EXPECT_EQ(Leaving(kOther, 1, 50), "1");
}

TEST_F(ModuleTableTest, ImpossibleModuleEvictsNothing) {
  Ready(kOne, 1, 30);
  EXPECT_EQ(Leaving(kOther, 1, 61), "none");
  EXPECT_EQ(Leaving(kOther, 6, 1), "none");
}

TEST_F(ModuleTableTest, ModuleInProgressIsNotEvicted) {
  Module& module = table_.Add({.tenant = kOne, .key = DigestOf(1)}, ModuleState::kCompiling, now_);
  table_.StartCompile(module, ChannelId(7), now_ + absl::Seconds(1));
  table_.StartStore(module, Bytes(50), DigestOf(9), RequestId{ChannelId(7), 1});
  EXPECT_EQ(Leaving(kOne, 1, 20), "none");
  EXPECT_EQ(Leaving(kOther, 1, 50), "");
  table_.Ready(module);
  EXPECT_EQ(Leaving(kOne, 1, 20), "1");
}

TEST_F(ModuleTableTest, ExcessModulesAreEvicted) {
  for (uint8_t key = 1; key <= 5; ++key) Ready(kOne, key, 1);
  EXPECT_EQ(Leaving(kOther, 1, 1), "1");
  EXPECT_EQ(Leaving(kOther, 0, 1), "");
}

TEST_F(ModuleTableTest, KeysAreSeparatePerTenant) {
  Ready(kOne, 1, 1);
  EXPECT_EQ(table_.FindByKey(kOther, DigestOf(1)), nullptr);
  EXPECT_EQ(table_.FindByKey(Tenant{.uid = 1, .container = "c"}, DigestOf(1)), nullptr);
}

TEST_F(ModuleTableTest, NextDeadlineIsEarliest) {
  EXPECT_EQ(table_.next_deadline(), absl::InfiniteFuture());
  Module& module = table_.Add({.tenant = kOne, .key = DigestOf(1)}, ModuleState::kCompiling, now_);
  table_.StartCompile(module, ChannelId(7), now_ + absl::Seconds(9));
  table_.Wait(module, RequestId{ChannelId(8), 1}, now_ + absl::Seconds(5));
  EXPECT_EQ(table_.next_deadline(), now_ + absl::Seconds(5));
  table_.SetDeadline(RequestId{ChannelId(8), 1}, absl::InfiniteFuture());
  EXPECT_EQ(table_.next_deadline(), now_ + absl::Seconds(9));
  EXPECT_FALSE(table_.FindLateWaiter(now_ + absl::Hours(1)).has_value());
  EXPECT_EQ(table_.FindLateCompile(now_ + absl::Seconds(9)), &module);
  table_.Leave(RequestId{ChannelId(8), 1});
  table_.Erase(module);
  EXPECT_EQ(table_.next_deadline(), absl::InfiniteFuture());
  EXPECT_EQ(table_.Usage(nullptr).modules, 0u);
}

TEST_F(ModuleTableTest, CountsOfTenantEndWithItsLastModule) {
  Module& module = Ready(kOne, 1, 1);
  table_.Count(kOne, &ModuleCounts::hits);
  table_.Count(kOther, &ModuleCounts::hits);
  EXPECT_EQ(table_.Usage(&kOne).counts.hits, 1u);
  EXPECT_EQ(table_.Usage(&kOther).counts.hits, 0u);
  EXPECT_EQ(table_.Usage(nullptr).counts.hits, 2u);
  table_.Erase(module);
  EXPECT_EQ(table_.Usage(&kOne).counts.hits, 0u);
}

}  // namespace
}  // namespace berth::core
