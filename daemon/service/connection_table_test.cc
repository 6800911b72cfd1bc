#include "daemon/service/connection_table.h"

#include "common/error.h"
#include "gtest/gtest.h"

namespace berth::service {
namespace {

Peer PeerOf(uint32_t uid) { return {.tenant = {.uid = uid}, .process = {.pid = 1, .uid = uid}}; }

TEST(ConnectionTableTest, FindsWhoIsBehindAConnectionUntilItEnds) {
  ConnectionTable table({.total = 10, .per_uid = 10});
  ASSERT_TRUE(table.Add(7, PeerOf(1000)).ok());
  EXPECT_TRUE(table.Contains(7));
  const auto peer = table.Find("fd:7");
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ((*peer)->tenant.uid, 1000u);
  table.Remove(7);
  EXPECT_FALSE(table.Contains(7));
  EXPECT_EQ(table.Find("fd:7").status().code(), absl::StatusCode::kUnavailable);
  // Who is in the middle of a call keeps what it found.
  EXPECT_EQ((*peer)->tenant.uid, 1000u);
}

TEST(ConnectionTableTest, OneUserCannotTakeAllConnections) {
  ConnectionTable table({.total = 10, .per_uid = 2});
  ASSERT_TRUE(table.Add(1, PeerOf(1000)).ok());
  ASSERT_TRUE(table.Add(2, PeerOf(1000)).ok());
  const absl::Status refused = table.Add(3, PeerOf(1000));
  EXPECT_TRUE(IsRefusal(refused, Reason::kLimit));
  EXPECT_EQ(refused.message(), "connections of uid 1000: 2 are open, limit 2");
  EXPECT_FALSE(table.Contains(3));
  EXPECT_TRUE(table.Add(3, PeerOf(1001)).ok());
  table.Remove(1);
  EXPECT_TRUE(table.Add(4, PeerOf(1000)).ok());
}

TEST(ConnectionTableTest, ATenantHasNoMoreThanItsQuotaAndAContainerHasItsOwn) {
  ConnectionTable table({.total = 10, .per_uid = 10});
  table.SetQuotas({.all = {.connections = 1}});
  Peer container = PeerOf(1000);
  container.tenant.container = "/a";
  Peer operator_of_it = PeerOf(1000);
  operator_of_it.role = Peer::Role::kAdmin;
  ASSERT_TRUE(table.Add(1, PeerOf(1000)).ok());
  const absl::Status refused = table.Add(2, PeerOf(1000));
  EXPECT_TRUE(IsRefusal(refused, Reason::kLimit));
  EXPECT_EQ(refused.message(), "connections of a tenant of uid 1000: 1 are open, limit 1");
  EXPECT_TRUE(table.Add(3, container).ok());
  EXPECT_TRUE(table.Add(4, operator_of_it).ok()) << "who looks after the node gets in";
  table.SetQuotas({});
  EXPECT_TRUE(table.Add(2, PeerOf(1000)).ok()) << "what is lifted counts at once";
  table.SetQuotas({.all = {.connections = 2}});
  EXPECT_FALSE(table.Add(5, PeerOf(1000)).ok());
  table.Remove(4);
  EXPECT_FALSE(table.Add(5, PeerOf(1000)).ok()) << "an operator's connection is none of the tenant's";
  table.Remove(1);
  EXPECT_TRUE(table.Add(5, PeerOf(1000)).ok());
}

TEST(ConnectionTableTest, TheTotalIsBounded) {
  ConnectionTable table({.total = 2, .per_uid = 2});
  ASSERT_TRUE(table.Add(1, PeerOf(1)).ok());
  ASSERT_TRUE(table.Add(2, PeerOf(2)).ok());
  EXPECT_TRUE(IsRefusal(table.Add(3, PeerOf(3)), Reason::kLimit));
  table.Remove(2);
  table.Remove(2);
  EXPECT_TRUE(table.Add(3, PeerOf(3)).ok());
}

TEST(ConnectionTableTest, ANumberInUseIsNotGivenAway) {
  ConnectionTable table({.total = 10, .per_uid = 10});
  ASSERT_TRUE(table.Add(7, PeerOf(1)).ok());
  EXPECT_EQ(table.Add(7, PeerOf(2)).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ((*table.Find("fd:7"))->tenant.uid, 1u);
}

TEST(ConnectionTableTest, AnotherKindOfPeerIsNobody) {
  const ConnectionTable table({});
  EXPECT_FALSE(table.Find("unix:/tmp/x").ok());
  EXPECT_FALSE(table.Find("fd:").ok());
  EXPECT_FALSE(table.Find("").ok());
}

}  // namespace
}  // namespace berth::service
