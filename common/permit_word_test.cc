#include "common/permit_word.h"

#include <atomic>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace berth {
namespace {

using PutBack = PermitWord::PutBack;

TEST(PermitWordTest, IsTakenAgainAsLongAsNobodyWaits) {
  PermitWord word{};
  EXPECT_FALSE(word.Take(7));
  word.Lend(7);
  EXPECT_FALSE(word.Take(7));
  EXPECT_EQ(word.Put(7), PutBack::kKept);
  EXPECT_TRUE(word.Look(7).idle);
  EXPECT_TRUE(word.Take(7));
  EXPECT_FALSE(word.Look(7).idle);
  EXPECT_EQ(word.Look(7).uses, 1u);
  word.SetWaiting(true);
  EXPECT_EQ(word.Put(7), PutBack::kWanted);
  EXPECT_FALSE(word.Take(7));
  EXPECT_TRUE(word.TakeBack(7));
  EXPECT_FALSE(word.TakeBack(7));
  EXPECT_FALSE(word.Take(7));
}

TEST(PermitWordTest, WhatIsUsedIsNotTakenBack) {
  PermitWord word{};
  word.Lend(7);
  EXPECT_FALSE(word.TakeBack(7));
  EXPECT_EQ(word.Put(7), PutBack::kKept);
}

TEST(PermitWordTest, OfAnotherPermitNothingIsTakenOrPutBack) {
  PermitWord word{};
  word.Lend(7);
  // Revoked, and the process was granted another one meanwhile.
  word.End(7);
  word.Lend(8);
  EXPECT_EQ(word.Put(7), PutBack::kNotOurs);
  EXPECT_EQ(word.Put(8), PutBack::kKept);
  EXPECT_FALSE(word.Take(7));
  EXPECT_FALSE(word.TakeBack(7));
  EXPECT_FALSE(word.Look(7).idle);
  EXPECT_TRUE(word.Look(8).idle);
}

TEST(PermitWordTest, UsesWrapWithoutTouchingThePermit) {
  PermitWord word{};
  word.Lend(7);
  constexpr uint32_t kWrap = 1u << 22;
  for (uint32_t i = 0; i < kWrap + 3; ++i) {
    ASSERT_EQ(word.Put(7), PutBack::kKept);
    ASSERT_TRUE(word.Take(7));
  }
  EXPECT_EQ(word.Look(7).uses, 3u);
}

// A thread uses, another takes back and lends anew: never both have the unit, and none is lost.
TEST(PermitWordTest, TheUnitIsOneSidesOrTheOthersAndNobodyIsForgotten) {
  PermitWord word{};
  std::atomic<int> users = 0;
  std::atomic<uint64_t> lent = 1;
  std::atomic<bool> told = false;
  std::atomic<bool> stop = false;
  word.Lend(1);
  std::thread process([&] {
    uint64_t permit = 1;
    bool used = true;
    while (!stop.load()) {
      if (used) {
        EXPECT_EQ(users.fetch_add(1), 0);
        users.fetch_sub(1);
        if (word.Put(permit) == PutBack::kWanted) told = true;
        used = false;
      }
      used = word.Take(permit);
      if (!used && lent.load() != permit) {
        permit = lent.load();
        used = true;
      } else if (!used) {
        std::this_thread::yield();
      }
    }
  });
  for (uint64_t permit = 1; permit < 3'000; ++permit) {
    told = false;
    word.SetWaiting(true);
    // Either it is idle now, or the process says so.
    bool back = word.TakeBack(permit);
    while (!back) {
      if (told.exchange(false)) {
        back = word.TakeBack(permit);
      } else {
        std::this_thread::yield();
      }
    }
    EXPECT_EQ(users.fetch_add(1), 0);
    users.fetch_sub(1);
    word.SetWaiting(false);
    word.Lend(permit + 1);
    lent = permit + 1;
  }
  stop = true;
  process.join();
}

TEST(PermitWordTest, ABrokerThatFollowsSeesWhatBecameOfThePermit) {
  PermitWord word{};
  EXPECT_EQ(word.StateOf(7), PermitWord::Lent::kTakenBack);
  word.Lend(7);
  EXPECT_EQ(word.StateOf(7), PermitWord::Lent::kYes);
  EXPECT_EQ(word.StateOf(8), PermitWord::Lent::kTakenBack);
  word.Put(7);
  EXPECT_EQ(word.StateOf(7), PermitWord::Lent::kYes);
  EXPECT_TRUE(word.TakeBack(7));
  EXPECT_EQ(word.StateOf(7), PermitWord::Lent::kTakenBack);
  word.Lend(8);
  word.End(8);
  EXPECT_EQ(word.StateOf(8), PermitWord::Lent::kEnded);
  EXPECT_EQ(word.Put(8), PutBack::kNotOurs);
}

}  // namespace
}  // namespace berth
