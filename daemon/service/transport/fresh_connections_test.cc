#include "daemon/service/transport/fresh_connections.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace berth::service {
namespace {

using Fresh = FreshConnections<std::string>;

TEST(FreshConnectionsTest, NoConnectionIsSurplusUpToLimit) {
  Fresh fresh(2);
  EXPECT_EQ(fresh.Surplus(), std::nullopt);
  fresh.Add(1, "a");
  fresh.Add(1, "b");
  EXPECT_EQ(fresh.Surplus(), std::nullopt);
}

TEST(FreshConnectionsTest, SurplusIsOldestOfLargestUser) {
  Fresh fresh(3);
  fresh.Add(2, "of the quiet one");
  const Fresh::Number first = fresh.Add(1, "first of the flood");
  fresh.Add(1, "second of the flood");
  fresh.Add(3, "of a newcomer");
  EXPECT_EQ(fresh.Surplus(), "first of the flood");
  fresh.Remove(1, first);
  EXPECT_EQ(fresh.Surplus(), std::nullopt);
  fresh.Add(1, "third of the flood");
  EXPECT_EQ(fresh.Surplus(), "second of the flood");
}

TEST(FreshConnectionsTest, RemovingAbsentConnectionDoesNothing) {
  Fresh fresh(1);
  const Fresh::Number number = fresh.Add(1, "a");
  fresh.Remove(2, number);
  fresh.Remove(1, number + 1);
  fresh.Remove(1, number);
  fresh.Remove(1, number);
  std::vector<std::string> left;
  fresh.Add(1, "b");
  EXPECT_EQ(fresh.Surplus(), std::nullopt);
  fresh.ForEach([&](const std::string& connection) { left.push_back(connection); });
  EXPECT_EQ(left, std::vector<std::string>{"b"});
}

}  // namespace
}  // namespace berth::service
