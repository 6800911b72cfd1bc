#include "daemon/service/limits/accept_gate.h"

#include <berth/error.h>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace berth::service {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1'000);

TEST(AcceptGateTest, UserAboveRateIsRejectedOthersAreNot) {
  AcceptGate gate({.per_uid = {.per_second = 2, .burst = 3}, .total = {.per_second = 100, .burst = 100}});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(gate.Admit(1000, kStart).ok()) << i;
  const absl::Status refused = gate.Admit(1000, kStart);
  EXPECT_TRUE(IsRefusal(refused, Reason::kLimit));
  EXPECT_EQ(refused.message(), "new connections of uid 1000: limit 3 at once and 2 a second");
  EXPECT_EQ(GetErrorDetails(refused)->retry_after, AcceptGate::kPause);
  EXPECT_TRUE(gate.Admit(1001, kStart).ok());
  EXPECT_EQ(gate.refused_total(), 1u);
  EXPECT_TRUE(gate.Admit(1000, kStart + absl::Milliseconds(500)).ok());
}

TEST(AcceptGateTest, UserPastOwnRateTakesNothingFromTotal) {
  AcceptGate gate({.per_uid = {.per_second = 1, .burst = 2}, .total = {.per_second = 1, .burst = 3}});
  for (int i = 0; i < 10; ++i) EXPECT_EQ(gate.Admit(1000, kStart).ok(), i < 2) << i;
  EXPECT_TRUE(gate.Admit(1001, kStart).ok());
  const absl::Status refused = gate.Admit(1001, kStart);
  EXPECT_EQ(refused.message(), "new connections: limit 3 at once and 1 a second");
}

// Each uid connects until it is refused, as a caller of the gate does. Returns the number of admitted connections.
int Connect(AcceptGate& gate, uint32_t uid, uint32_t user, absl::Time now) {
  for (int admitted = 0; true; ++admitted) {
    if (!gate.Admit(uid, now).ok() || !gate.Attribute(uid, user, now).ok()) return admitted;
  }
}

TEST(AcceptGateTest, AdditionalUidsShareRateOfTheirUser) {
  AcceptGate gate({.per_uid = {.per_second = 1, .burst = 4}, .total = {.per_second = 1, .burst = 6}});
  EXPECT_EQ(Connect(gate, 100'000, 1000, kStart), 4);
  EXPECT_EQ(gate.UserBehind(100'000, kStart), 1000u);
  for (uint32_t uid = 100'001; uid < 100'020; ++uid) EXPECT_EQ(Connect(gate, uid, 1000, kStart), 0) << uid;
  EXPECT_EQ(gate.Admit(100'000, kStart).message(), "new connections of uid 1000: limit 4 at once and 1 a second");
  EXPECT_EQ(Connect(gate, 1001, 1001, kStart), 2) << "the refused ones took nothing from the total";
}

TEST(AcceptGateTest, UnidentifiedConnectionTakesNothingFromTotal) {
  AcceptGate gate({.per_uid = {.per_second = 1, .burst = 4}, .total = {.per_second = 1, .burst = 3}});
  for (uint32_t uid = 1000; uid < 1010; ++uid) {
    ASSERT_TRUE(gate.Admit(uid, kStart).ok()) << uid;
    gate.Withdraw();
  }
  EXPECT_EQ(Connect(gate, 1010, 1010, kStart), 3);
}

TEST(AcceptGateTest, UidOfOtherUserIsForgotten) {
  AcceptGate gate({.per_uid = {.per_second = 0.001, .burst = 2}, .total = {.per_second = 100, .burst = 100}});
  EXPECT_EQ(Connect(gate, 100'000, 1000, kStart), 2);
  EXPECT_EQ(Connect(gate, 100'000, 100'000, kStart), 0) << "it counts to the user of its last connection";
  const absl::Time later = kStart + AcceptGate::kMemory + absl::Milliseconds(1);
  EXPECT_EQ(gate.UserBehind(100'000, later), 100'000u);
  EXPECT_EQ(Connect(gate, 100'000, 100'000, later), 1) << "its first connection counted to it, too";
}

TEST(AcceptGateTest, PunishedUserReturnsSlowly) {
  AcceptGate gate({});
  int connections = 0;
  for (int second = 0; second < 60; ++second) {
    const absl::Time now = kStart + absl::Seconds(second);
    while (gate.Admit(1000, now).ok()) {
      gate.Punish(1000, now);
      ++connections;
    }
  }
  // The burst allows four of them.
  EXPECT_GE(connections, 60);
  EXPECT_LE(connections, 66);
  EXPECT_TRUE(gate.Admit(1001, kStart).ok());
}

}  // namespace
}  // namespace berth::service
