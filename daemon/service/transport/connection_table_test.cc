#include "daemon/service/transport/connection_table.h"

#include <berth/error.h>

#include "absl/time/time.h"
#include "daemon/service/transport/frame_meter.h"
#include "gtest/gtest.h"

namespace berth::service {
namespace {

Peer PeerOf(uint32_t uid) { return {.tenant = {.uid = uid}, .process = {.pid = 1, .uid = uid}}; }

TEST(ConnectionTableTest, PeerIsFoundUntilItsConnectionEnds) {
  ConnectionTable table({.total = 20, .per_uid = 10});
  ASSERT_TRUE(table.Add(7, PeerOf(1000)).ok());
  EXPECT_TRUE(table.Contains(7));
  const auto peer = table.Find("fd:7");
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ((*peer)->tenant.uid, 1000u);
  table.Remove(7);
  EXPECT_FALSE(table.Contains(7));
  EXPECT_EQ(table.Find("fd:7").status().code(), absl::StatusCode::kUnavailable);
  // A call in flight still has the peer that it found.
  EXPECT_EQ((*peer)->tenant.uid, 1000u);
}

TEST(ConnectionTableTest, UsersShareAllConnections) {
  ConnectionTable table({.total = 8, .per_uid = 8});
  int last = 0;
  const auto take_all = [&](uint32_t uid) {
    int taken = 0;
    while (table.Add(++last, PeerOf(uid)).ok()) ++taken;
    return taken;
  };
  EXPECT_EQ(take_all(1000), 4);
  EXPECT_EQ(take_all(1001), 2);
  EXPECT_EQ(take_all(1002), 1);
  EXPECT_EQ(take_all(1000), 0);
}

TEST(ConnectionTableTest, UserBeyondLimitIsRejected) {
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

TEST(ConnectionTableTest, OperatorsHaveTheirOwnConnections) {
  ConnectionTable table({.total = 4, .per_uid = 2, .operators = 2});
  const auto operator_of = [](uint32_t uid) {
    Peer peer = PeerOf(uid);
    peer.role = Peer::Role::kAdmin;
    return peer;
  };
  ASSERT_TRUE(table.Add(1, PeerOf(0)).ok());
  ASSERT_TRUE(table.Add(2, PeerOf(0)).ok());
  EXPECT_TRUE(table.Add(3, operator_of(0)).ok()) << "whatever else its user has";
  EXPECT_TRUE(table.Add(4, operator_of(0)).ok());
  const absl::Status refused = table.Add(5, operator_of(1));
  EXPECT_TRUE(IsRefusal(refused, Reason::kLimit));
  EXPECT_EQ(refused.message(), "operators' connections: 2 are open, limit 2");
  table.Remove(1);
  EXPECT_TRUE(table.Add(5, PeerOf(0)).ok()) << "operators' are not among the clients'";
  EXPECT_FALSE(table.Add(6, PeerOf(0)).ok());
  table.Remove(3);
  EXPECT_TRUE(table.Add(6, operator_of(1)).ok());
}

TEST(ConnectionTableTest, TenantAndContainerHaveSeparateQuotas) {
  ConnectionTable table({.total = 20, .per_uid = 10});
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

TEST(ConnectionTableTest, TotalConnectionsAreBounded) {
  ConnectionTable table({.total = 2, .per_uid = 2});
  ASSERT_TRUE(table.Add(1, PeerOf(1)).ok());
  ASSERT_TRUE(table.Add(2, PeerOf(2)).ok());
  EXPECT_TRUE(IsRefusal(table.Add(3, PeerOf(3)), Reason::kLimit));
  table.Remove(2);
  table.Remove(2);
  EXPECT_TRUE(table.Add(3, PeerOf(3)).ok());
}

TEST(ConnectionTableTest, FdNumberInUseIsRejected) {
  ConnectionTable table({.total = 20, .per_uid = 10});
  ASSERT_TRUE(table.Add(7, PeerOf(1)).ok());
  EXPECT_EQ(table.Add(7, PeerOf(2)).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ((*table.Find("fd:7"))->tenant.uid, 1u);
}

TEST(ConnectionTableTest, ForeignPeerNameIsRejected) {
  const ConnectionTable table({});
  EXPECT_FALSE(table.Find("unix:/tmp/x").ok());
  EXPECT_FALSE(table.Find("fd:").ok());
  EXPECT_FALSE(table.Find("").ok());
}

class ConnectionRateTest : public testing::Test {
 protected:
  static constexpr uint64_t kBurst = 160;
  static constexpr FrameCost kCall = {.load = FrameCost::kCall};
  static constexpr FrameCost kReset = {.load = FrameCost::kFrame, .resets = 1};

  // A second returns one call to a connection, and two to a user.
  ConnectionRateTest()
      : table_({.total = 10,
                .per_uid = 10,
                .calls = {.per_second = 1, .burst = kBurst},
                .calls_per_uid = {.per_second = 2, .burst = 1.5 * kBurst},
                .resets = {.per_second = 1, .burst = 10},
                .resets_per_uid = {.per_second = 2, .burst = 15}}) {}

  const absl::Time start_ = absl::FromUnixSeconds(1'000);
  ConnectionTable table_;
};

TEST_F(ConnectionRateTest, CallsBeyondBurstEndOnlyTheirConnection) {
  ASSERT_TRUE(table_.Add(1, PeerOf(1000)).ok());
  ASSERT_TRUE(table_.Add(2, PeerOf(1001)).ok());
  for (uint64_t i = 0; i < kBurst; ++i) ASSERT_FALSE(table_.Charge(1, kCall, start_)) << i;
  const auto ended = table_.Charge(1, kCall, start_);
  ASSERT_TRUE(ended.has_value());
  EXPECT_EQ(ended->peer->tenant.uid, 1000u);
  EXPECT_STREQ(ended->what, "calls");
  EXPECT_FALSE(ended->of_uid);
  EXPECT_EQ(ended->limit.burst, kBurst);
  // Charges after the end report nothing.
  EXPECT_FALSE(table_.Charge(1, kCall, start_));
  EXPECT_EQ(table_.ended_total(), 1u);
  EXPECT_FALSE(table_.Charge(2, kCall, start_));
  table_.Remove(1);
  EXPECT_FALSE(table_.Charge(1, kCall, start_)) << "who has gone is charged nothing";
}

TEST_F(ConnectionRateTest, ResetsHaveTheirOwnRate) {
  ASSERT_TRUE(table_.Add(1, PeerOf(1000)).ok());
  for (int i = 0; i < 10; ++i) ASSERT_FALSE(table_.Charge(1, kReset, start_)) << i;
  const auto ended = table_.Charge(1, kReset, start_);
  ASSERT_TRUE(ended.has_value());
  EXPECT_STREQ(ended->what, "resets");
  EXPECT_EQ(ended->limit.burst, 10);
}

TEST_F(ConnectionRateTest, SlowConnectionIsNeverEnded) {
  ASSERT_TRUE(table_.Add(1, PeerOf(1000)).ok());
  for (int second = 0; second < 1'000; ++second) {
    ASSERT_FALSE(table_.Charge(1, {.load = FrameCost::kCall, .resets = 1}, start_ + absl::Seconds(second))) << second;
  }
}

TEST_F(ConnectionRateTest, UsersConnectionsShareRateAndBusyEnds) {
  for (int fd = 1; fd <= 3; ++fd) ASSERT_TRUE(table_.Add(fd, PeerOf(1000)).ok());
  ASSERT_TRUE(table_.Add(4, PeerOf(1001)).ok());
  EXPECT_FALSE(table_.Charge(1, {.load = FrameCost::kCall * kBurst / 2}, start_));
  EXPECT_FALSE(table_.Charge(2, {.load = FrameCost::kCall * kBurst}, start_));
  // The user's burst is used up.
  EXPECT_FALSE(table_.Charge(3, kCall, start_)) << "it has hardly called";
  EXPECT_FALSE(table_.Charge(4, kCall, start_)) << "another user's";
  const auto ended = table_.Charge(1, kCall, start_);
  ASSERT_TRUE(ended.has_value());
  EXPECT_TRUE(ended->of_uid);
  EXPECT_EQ(ended->limit.burst, 1.5 * kBurst);
}

TEST_F(ConnectionRateTest, OperatorIsNotCharged) {
  Peer peer = PeerOf(0);
  peer.role = Peer::Role::kAdmin;
  ASSERT_TRUE(table_.Add(1, peer).ok());
  for (uint64_t i = 0; i < 10 * kBurst; ++i) ASSERT_FALSE(table_.Charge(1, kReset, start_));
}

}  // namespace
}  // namespace berth::service
