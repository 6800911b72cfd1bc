#include "client/sdk/transport/call_attempts.h"

#include <berth/error.h>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

constexpr absl::Time kStart = absl::UnixEpoch();

absl::Status Gone() { return absl::UnavailableError("Socket closed"); }

std::optional<absl::Duration> After(CallAttempts& attempts, absl::Duration waited, absl::Status status) {
  attempts.Sent(kStart);
  return attempts.Failed(kStart + waited, &status);
}

TEST(CallAttemptsTest, LostDaemonIsRetriedAtOnce) {
  CallAttempts attempts;
  EXPECT_EQ(After(attempts, absl::Milliseconds(1), Gone()), absl::ZeroDuration());
}

TEST(CallAttemptsTest, CallSentToThreeDaemonsIsNotSentAgain) {
  CallAttempts attempts;
  EXPECT_EQ(After(attempts, absl::Milliseconds(1), Gone()), absl::ZeroDuration());
  EXPECT_EQ(After(attempts, absl::Milliseconds(1), Gone()), CallAttempts::kPause);
  absl::Status last = Gone();
  attempts.Sent(kStart);
  EXPECT_EQ(attempts.Failed(kStart, &last), std::nullopt);
  EXPECT_TRUE(absl::IsUnavailable(last));
  EXPECT_TRUE(absl::StrContains(last.message(), "ended 3 times")) << last;
  EXPECT_TRUE(absl::StrContains(last.message(), "Socket closed")) << last;
}

TEST(CallAttemptsTest, LongServedCallIsRetriedWithoutLimit) {
  CallAttempts attempts;
  EXPECT_EQ(After(attempts, CallAttempts::kSuspectFor, Gone()), absl::ZeroDuration());
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(After(attempts, absl::Milliseconds(1), Gone()), absl::ZeroDuration());
  }
}

TEST(CallAttemptsTest, TemporaryRefusalIsRetriedTwice) {
  CallAttempts attempts;
  const absl::Status soon = RefuseWithRetry(Reason::kDeviceRebuilding, absl::Milliseconds(70), "not now");
  EXPECT_EQ(After(attempts, absl::ZeroDuration(), soon), absl::Milliseconds(70));
  EXPECT_EQ(After(attempts, absl::ZeroDuration(), soon), 2 * CallAttempts::kPause);
  EXPECT_EQ(After(attempts, absl::ZeroDuration(), soon), std::nullopt);
}

TEST(CallAttemptsTest, RefusalsAndEndsAreCountedApart) {
  CallAttempts attempts;
  const absl::Status soon = RefuseWithRetry(Reason::kDeviceRebuilding, absl::Milliseconds(70), "not now");
  EXPECT_NE(After(attempts, absl::ZeroDuration(), soon), std::nullopt);
  EXPECT_NE(After(attempts, absl::ZeroDuration(), soon), std::nullopt);
  EXPECT_EQ(attempts.ends(), 0);
  EXPECT_NE(After(attempts, absl::ZeroDuration(), Gone()), std::nullopt);
  EXPECT_NE(After(attempts, absl::ZeroDuration(), Gone()), std::nullopt);
  EXPECT_EQ(attempts.ends(), 2);
}

TEST(CallAttemptsTest, FinalErrorIsNotRetried) {
  CallAttempts attempts;
  EXPECT_EQ(After(attempts, absl::ZeroDuration(), absl::OkStatus()), std::nullopt);
  EXPECT_EQ(After(attempts, absl::ZeroDuration(), Refuse(Reason::kNotFound, "gone")), std::nullopt);
  EXPECT_EQ(After(attempts, absl::ZeroDuration(), Refuse(Reason::kBlockInUse, "in use")), std::nullopt);
  EXPECT_EQ(After(attempts, absl::ZeroDuration(), absl::DeadlineExceededError("late")), std::nullopt);
}

}  // namespace
}  // namespace berth::internal
