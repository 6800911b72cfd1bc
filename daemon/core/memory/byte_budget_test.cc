#include "daemon/core/memory/byte_budget.h"

#include <berth/error.h>

#include "gtest/gtest.h"

namespace berth::core {
namespace {

using Verdict = ByteBudget::Verdict;

TEST(ByteBudgetTest, EachPhaseIsChargedSeparatelyUntilErased) {
  ByteBudget account{Bytes(100)};
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

TEST(ByteBudgetTest, ExactLimitFitsFurtherByteDoesNot) {
  ByteBudget account{Bytes(100)};
  account.Add(BlockPhase::kLive, Bytes(40));
  EXPECT_EQ(account.Judge(Bytes(60)), Verdict::kNow);
  EXPECT_EQ(account.Judge(Bytes(61)), Verdict::kNever);
  EXPECT_EQ(account.Judge(Bytes(100)), Verdict::kNever);
  EXPECT_EQ(account.Judge(Bytes(101)), Verdict::kTooLarge);
  EXPECT_EQ(account.Judge(Bytes(UINT64_MAX)), Verdict::kTooLarge);
  account.Add(BlockPhase::kRetired, Bytes(10));
  account.Add(BlockPhase::kWarm, Bytes(10));
  EXPECT_EQ(account.Judge(Bytes(40)), Verdict::kNow);
  EXPECT_EQ(account.Judge(Bytes(41)), Verdict::kAfterReclaim);
  EXPECT_EQ(account.Judge(Bytes(60)), Verdict::kAfterReclaim);
  EXPECT_EQ(account.Judge(Bytes(61)), Verdict::kNever);
}

TEST(ByteBudgetTest, StuckBytesStayChargedAndAreNotExpected) {
  ByteBudget account{Bytes(100)};
  account.Add(BlockPhase::kRetired, Bytes(60));
  account.MarkStuck(Bytes(60));
  EXPECT_EQ(account.coming(), Bytes(0));
  EXPECT_EQ(account.Judge(Bytes(41)), Verdict::kNever);
  EXPECT_EQ(account.failed_releases(), 1);
  account.UnmarkStuck(Bytes(60));
  EXPECT_EQ(account.failed_releases(), 1);
  EXPECT_EQ(account.Judge(Bytes(41)), Verdict::kAfterReclaim);
}

TEST(ByteBudgetTest, BudgetBelowChargedBytesFitsNothing) {
  ByteBudget account{Bytes(100)};
  account.Add(BlockPhase::kLive, Bytes(80));
  account.set_limit(Bytes(50), /*by_hand=*/true);
  EXPECT_EQ(account.Judge(Bytes(1)), Verdict::kNever);
  const auto details = GetErrorDetails(account.OverBudget("device", 3, Bytes(1)));
  ASSERT_TRUE(details.has_value());
  EXPECT_EQ(details->reason, Reason::kOverBudget);
  EXPECT_EQ(details->metadata.at("remaining"), "0");
  EXPECT_EQ(details->metadata.at("current"), "80");
  EXPECT_EQ(details->metadata.at("limit"), "50");
  EXPECT_EQ(details->metadata.at("layer"), "device");
}

TEST(ByteBudgetTest, UnlimitedBudgetFitsEverything) {
  ByteBudget account;
  account.Add(BlockPhase::kLive, Bytes(80));
  EXPECT_EQ(account.Judge(Bytes(UINT64_MAX)), Verdict::kNow);
  account.set_limit(Bytes(80), /*by_hand=*/true);
  EXPECT_EQ(account.Judge(Bytes(1)), Verdict::kNever);
}

TEST(ByteBudgetTest, ClaimedBytesAreChargedUntilUnclaimed) {
  ByteBudget account{Bytes(100)};
  account.Claim(Bytes(70));
  EXPECT_EQ(account.Judge(Bytes(30)), Verdict::kNow);
  EXPECT_EQ(account.Judge(Bytes(31)), Verdict::kNever);
  EXPECT_EQ(account.counts().reserved, Bytes(70));
  account.Unclaim(Bytes(70));
  EXPECT_EQ(account.charged(), Bytes(0));
}

TEST(ByteBudgetTest, PeakCountsLiveAndClaimedBytesOnly) {
  ByteBudget account{Bytes(100)};
  account.Add(BlockPhase::kReserved, Bytes(50));
  account.Add(BlockPhase::kWarm, Bytes(20));
  EXPECT_EQ(account.peak(), Bytes(0));
  account.Move(BlockPhase::kReserved, BlockPhase::kGone, Bytes(50));
  account.Move(BlockPhase::kWarm, BlockPhase::kLive, Bytes(20));
  account.Claim(Bytes(30));
  EXPECT_EQ(account.peak(), Bytes(50));
  account.Unclaim(Bytes(30));
  account.Add(BlockPhase::kReserved, Bytes(30));
  account.Move(BlockPhase::kReserved, BlockPhase::kLive, Bytes(30));
  account.Move(BlockPhase::kLive, BlockPhase::kRetired, Bytes(30));
  EXPECT_EQ(account.peak(), Bytes(50));
  account.RecordRefused();
  EXPECT_EQ(account.peak(), Bytes(50));
  EXPECT_EQ(account.refusals(), 1);
}

}  // namespace
}  // namespace berth::core
