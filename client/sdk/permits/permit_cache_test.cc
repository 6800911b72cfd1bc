#include "client/sdk/permits/permit_cache.h"

#include <optional>

#include "common/wire/permit_slot.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

constexpr uint64_t kPermit = 7;

class PermitCacheTest : public ::testing::Test {
 protected:
  PermitCacheTest() {
    EXPECT_TRUE(cache_.BeginOpen());
    cache_.Open(&permit_slot_);
  }
  std::optional<PermitCache::Use> Cache(uint64_t permit) {
    return cache_.Cache("p", {.permit = permit, .acquisition = 10 * permit});
  }

  PermitSlot permit_slot_{};
  PermitCache cache_;
};

TEST_F(PermitCacheTest, CachedPermitIsTakenAgain) {
  permit_slot_.Lend(kPermit);
  ASSERT_TRUE(Cache(kPermit).has_value());
  EXPECT_FALSE(cache_.Take("p").has_value()) << "it is in use";
  EXPECT_EQ(permit_slot_.Put(kPermit), PermitSlot::PutBack::kCached);
  EXPECT_FALSE(cache_.Take("another").has_value());
  EXPECT_TRUE(cache_.Take("p").has_value());
}

// The daemon restarts while a thread obtains the slot.
TEST(PermitCacheOpenTest, CloseDuringOpenLeavesCacheClosed) {
  PermitSlot permit_slot{};
  PermitCache cache;
  ASSERT_TRUE(cache.BeginOpen());
  EXPECT_FALSE(cache.Close().has_value());
  cache.Open(&permit_slot);
  EXPECT_FALSE(cache.open());
}

// Checks whether Close() returns the permit for release, by the state of its permit slot when the next daemon serves.
TEST_F(PermitCacheTest, CloseReturnsIdlePermitsOnly) {
  struct Case {
    const char* name;
    void (*before)(PermitSlot& permit_slot);
    bool given_back;
  };
  for (const Case& test :
       {Case{"in use", [](PermitSlot&) {}, false},
        Case{"idle", [](PermitSlot& permit_slot) { permit_slot.Put(kPermit); }, true},
        Case{"in use, and ended by the daemon", [](PermitSlot& permit_slot) { permit_slot.End(kPermit); }, false},
        Case{"taken back",
             [](PermitSlot& permit_slot) {
               permit_slot.Put(kPermit);
               permit_slot.TakeBack(kPermit);
             },
             true},
        Case{"taken back, and another one lent",
             [](PermitSlot& permit_slot) {
               permit_slot.Put(kPermit);
               permit_slot.TakeBack(kPermit);
               permit_slot.Lend(kPermit + 1);
             },
             true}}) {
    SCOPED_TRACE(test.name);
    PermitCache cache;
    ASSERT_TRUE(cache.BeginOpen());
    cache.Open(&permit_slot_);
    permit_slot_.Lend(kPermit);
    ASSERT_TRUE(cache.Cache("p", {.permit = kPermit, .acquisition = 70}).has_value());
    test.before(permit_slot_);
    const std::optional<PermitCache::Use> left = cache.Close();
    ASSERT_EQ(left.has_value(), test.given_back);
    EXPECT_TRUE(!left.has_value() || left->acquisition == 70);
    EXPECT_NE(permit_slot_.Put(kPermit), PermitSlot::PutBack::kCached) << "nobody would give it back";
    EXPECT_FALSE(cache.Take("p").has_value());
  }
}

TEST_F(PermitCacheTest, AnswerAfterCloseIsNotCached) {
  permit_slot_.Lend(kPermit);
  EXPECT_FALSE(cache_.Close().has_value());
  EXPECT_FALSE(Cache(kPermit).has_value());
  EXPECT_FALSE(cache_.Take("p").has_value());
}

}  // namespace
}  // namespace berth::internal
