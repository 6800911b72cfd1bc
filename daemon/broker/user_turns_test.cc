#include "daemon/broker/user_turns.h"

#include <string>

#include "gtest/gtest.h"

namespace berth {
namespace {

std::string TakeAll(UserTurns<std::string>& turns) {
  std::string taken;
  while (const auto thing = turns.Take()) taken += *thing + " ";
  return taken;
}

TEST(UserTurnsTest, UsersTakeTurnsAndItemsStayInOrder) {
  UserTurns<std::string> turns;
  for (const char* const thing : {"a1", "a2", "a3", "a4"}) turns.Push(1000, thing);
  turns.Push(1002, "c1");
  EXPECT_EQ(turns.Take(), "a1");
  turns.Push(1001, "b1");
  turns.Push(1001, "b2");
  EXPECT_EQ(TakeAll(turns), "b1 c1 a2 b2 a3 a4 ");
  EXPECT_TRUE(turns.empty());
}

TEST(UserTurnsTest, LateUserWaitsForSingleItemOfEachOther) {
  UserTurns<int> turns;
  for (int i = 0; i < 1'000; ++i) turns.Push(1000, i);
  for (int i = 0; i < 500; ++i) turns.Take();
  turns.Push(999, -1);
  EXPECT_EQ(turns.Take(), -1);
  EXPECT_EQ(turns.CountOf(1000), 500u);
}

TEST(UserTurnsTest, DroppedEntriesAreNotTaken) {
  UserTurns<int> turns;
  for (const int i : {1, 2, 3}) turns.Push(1000, i);
  turns.Push(1001, 2);
  EXPECT_TRUE(turns.HasIf(1000, [](int i) { return i == 2; }));
  turns.DropIf(1000, [](int i) { return i == 2; });
  EXPECT_FALSE(turns.HasIf(1000, [](int i) { return i == 2; }));
  EXPECT_EQ(turns.size(), 3u);
  turns.DropIf(1000, [](int) { return true; });
  EXPECT_EQ(turns.Take(), 2);
  EXPECT_TRUE(turns.empty());
}

}  // namespace
}  // namespace berth
