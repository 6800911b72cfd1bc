#include "daemon/core/device_account.h"

#include "common/error.h"
#include "gtest/gtest.h"

namespace berth::core {
namespace {

using Verdict = DeviceAccount::Verdict;

TEST(DeviceAccountTest, EveryPhaseIsChargedInItsLineUntilGone) {
  DeviceAccount account{Bytes(100)};
  account.Add(BlockPhase::kWarming, Bytes(1));
  account.Add(BlockPhase::kWarm, Bytes(2));
  account.Add(BlockPhase::kReserved, Bytes(4));
  account.Add(BlockPhase::kAbandoned, Bytes(8));
  account.Add(BlockPhase::kLive, Bytes(16));
  account.Add(BlockPhase::kQuarantined, Bytes(32));
  account.Add(BlockPhase::kRetired, Bytes(64));
  const ByteCounts expected{.live = Bytes(16),
                            .retired = Bytes(64),
                            .quarantined = Bytes(32),
                            .warm = Bytes(3),
                            .reserved = Bytes(12)};
  EXPECT_EQ(account.counts(), expected);
  EXPECT_EQ(account.charged(), Bytes(127));
  EXPECT_EQ(account.coming(), Bytes(72));
  account.Move(BlockPhase::kRetired, BlockPhase::kGone, Bytes(64));
  account.Move(BlockPhase::kLive, BlockPhase::kRetired, Bytes(16));
  EXPECT_EQ(account.charged(), Bytes(63));
  EXPECT_EQ(account.counts().outstanding(), Bytes(48));
}

TEST(DeviceAccountTest, TheExactLimitFitsAndOneMoreDoesNot) {
  DeviceAccount account{Bytes(100)};
  account.Add(BlockPhase::kLive, Bytes(40));
  EXPECT_EQ(account.Judge(Bytes(60)), Verdict::kNow);
  EXPECT_EQ(account.Judge(Bytes(61)), Verdict::kNever);
  EXPECT_EQ(account.Judge(Bytes(UINT64_MAX)), Verdict::kNever);
  account.Add(BlockPhase::kRetired, Bytes(10));
  account.Add(BlockPhase::kWarm, Bytes(10));
  EXPECT_EQ(account.Judge(Bytes(40)), Verdict::kNow);
  EXPECT_EQ(account.Judge(Bytes(41)), Verdict::kAfterReclaim);
  EXPECT_EQ(account.Judge(Bytes(60)), Verdict::kAfterReclaim);
  EXPECT_EQ(account.Judge(Bytes(61)), Verdict::kNever);
}

TEST(DeviceAccountTest, StuckBytesAreChargedAndNotExpectedBack) {
  DeviceAccount account{Bytes(100)};
  account.Add(BlockPhase::kRetired, Bytes(60));
  account.MarkStuck(Bytes(60));
  EXPECT_EQ(account.coming(), Bytes(0));
  EXPECT_EQ(account.Judge(Bytes(41)), Verdict::kNever);
  account.UnmarkStuck(Bytes(60));
  EXPECT_EQ(account.Judge(Bytes(41)), Verdict::kAfterReclaim);
}

TEST(DeviceAccountTest, ALoweredBudgetBelowWhatIsChargedFitsNothing) {
  DeviceAccount account{Bytes(100)};
  account.Add(BlockPhase::kLive, Bytes(80));
  account.set_budget(Bytes(50));
  EXPECT_EQ(account.Judge(Bytes(1)), Verdict::kNever);
  const auto details = GetErrorDetails(account.OverBudget(3, Bytes(1)));
  ASSERT_TRUE(details.has_value());
  EXPECT_EQ(details->reason, Reason::kOverBudget);
  EXPECT_EQ(details->metadata.at("remaining"), "0");
  EXPECT_EQ(details->metadata.at("current"), "80");
  EXPECT_EQ(details->metadata.at("limit"), "50");
}

}  // namespace
}  // namespace berth::core
