#include "common/wire/permit_slot.h"

#include <atomic>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace berth {
namespace {

using PutBack = PermitSlot::PutBack;

TEST(PermitSlotTest, PermitIsTakenAgainUnlessWaiterIsSet) {
  PermitSlot permit_slot{};
  EXPECT_FALSE(permit_slot.Take(7));
  permit_slot.Lend(7);
  EXPECT_FALSE(permit_slot.Take(7));
  EXPECT_EQ(permit_slot.Put(7), PutBack::kCached);
  EXPECT_TRUE(permit_slot.Look(7).idle);
  EXPECT_TRUE(permit_slot.Take(7));
  EXPECT_FALSE(permit_slot.Look(7).idle);
  EXPECT_EQ(permit_slot.Look(7).uses, 1u);
  permit_slot.SetWaiting(true);
  EXPECT_EQ(permit_slot.Put(7), PutBack::kWanted);
  EXPECT_FALSE(permit_slot.Take(7));
  EXPECT_TRUE(permit_slot.TakeBack(7));
  EXPECT_FALSE(permit_slot.TakeBack(7));
  EXPECT_FALSE(permit_slot.Take(7));
}

TEST(PermitSlotTest, PermitInUseIsNotTakenBack) {
  PermitSlot permit_slot{};
  permit_slot.Lend(7);
  EXPECT_FALSE(permit_slot.TakeBack(7));
  EXPECT_EQ(permit_slot.Put(7), PutBack::kCached);
}

TEST(PermitSlotTest, OtherPermitIsNeitherTakenNorReturned) {
  PermitSlot permit_slot{};
  permit_slot.Lend(7);
  // Revoked, and the process was granted another permit meanwhile.
  permit_slot.End(7);
  permit_slot.Lend(8);
  EXPECT_EQ(permit_slot.Put(7), PutBack::kNotOurs);
  EXPECT_EQ(permit_slot.Put(8), PutBack::kCached);
  EXPECT_FALSE(permit_slot.Take(7));
  EXPECT_FALSE(permit_slot.TakeBack(7));
  EXPECT_FALSE(permit_slot.Look(7).idle);
  EXPECT_TRUE(permit_slot.Look(8).idle);
}

TEST(PermitSlotTest, WrappingUsesDoNotChangePermit) {
  PermitSlot permit_slot{};
  permit_slot.Lend(7);
  constexpr uint32_t kWrap = 1u << 22;
  for (uint32_t i = 0; i < kWrap + 3; ++i) {
    ASSERT_EQ(permit_slot.Put(7), PutBack::kCached);
    ASSERT_TRUE(permit_slot.Take(7));
  }
  EXPECT_EQ(permit_slot.Look(7).uses, 3u);
}

// One thread uses the unit, another reclaims it and lends it again: never both have it, and it is never lost.
TEST(PermitSlotTest, RacingSidesNeverShareOrLoseUnit) {
  PermitSlot permit_slot{};
  std::atomic<int> users = 0;
  std::atomic<uint64_t> lent = 1;
  std::atomic<bool> notified = false;
  std::atomic<bool> stop = false;
  permit_slot.Lend(1);
  std::thread process([&] {
    uint64_t permit = 1;
    bool used = true;
    while (!stop.load()) {
      if (used) {
        EXPECT_EQ(users.fetch_add(1), 0);
        users.fetch_sub(1);
        if (permit_slot.Put(permit) == PutBack::kWanted) notified = true;
        used = false;
      }
      used = permit_slot.Take(permit);
      if (!used && lent.load() != permit) {
        permit = lent.load();
        used = true;
      } else if (!used) {
        std::this_thread::yield();
      }
    }
  });
  for (uint64_t permit = 1; permit < 3'000; ++permit) {
    notified = false;
    permit_slot.SetWaiting(true);
    // Either the permit is idle now, or the process notifies the daemon.
    bool back = permit_slot.TakeBack(permit);
    while (!back) {
      if (notified.exchange(false)) {
        back = permit_slot.TakeBack(permit);
      } else {
        std::this_thread::yield();
      }
    }
    EXPECT_EQ(users.fetch_add(1), 0);
    users.fetch_sub(1);
    permit_slot.SetWaiting(false);
    permit_slot.Lend(permit + 1);
    lent = permit + 1;
  }
  stop = true;
  process.join();
}

TEST(PermitSlotTest, NextBrokerReadsPermitState) {
  PermitSlot permit_slot{};
  EXPECT_EQ(permit_slot.StateOf(7), PermitSlot::Lent::kTakenBack);
  permit_slot.Lend(7);
  EXPECT_EQ(permit_slot.StateOf(7), PermitSlot::Lent::kYes);
  EXPECT_EQ(permit_slot.StateOf(8), PermitSlot::Lent::kTakenBack);
  permit_slot.Put(7);
  EXPECT_EQ(permit_slot.StateOf(7), PermitSlot::Lent::kYes);
  EXPECT_TRUE(permit_slot.TakeBack(7));
  EXPECT_EQ(permit_slot.StateOf(7), PermitSlot::Lent::kTakenBack);
  permit_slot.Lend(8);
  permit_slot.End(8);
  EXPECT_EQ(permit_slot.StateOf(8), PermitSlot::Lent::kEnded);
  EXPECT_EQ(permit_slot.Put(8), PutBack::kNotOurs);
}

TEST(PermitSlotTest, LeaveReturnsWhetherUseContinues) {
  PermitSlot permit_slot{};
  permit_slot.Lend(7);
  EXPECT_TRUE(permit_slot.Leave(7));
  EXPECT_TRUE(permit_slot.Leave(7)) << "the use releases it";
  EXPECT_EQ(permit_slot.Put(7), PutBack::kNotOurs);
  permit_slot.Lend(8);
  permit_slot.Put(8);
  EXPECT_FALSE(permit_slot.Leave(8));
  EXPECT_FALSE(permit_slot.Take(8));
  permit_slot.Lend(9);
  EXPECT_FALSE(permit_slot.Leave(8)) << "another one is lent by now";
  EXPECT_EQ(permit_slot.StateOf(9), PermitSlot::Lent::kYes);
}

}  // namespace
}  // namespace berth
