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
