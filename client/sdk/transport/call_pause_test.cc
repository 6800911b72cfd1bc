#include "client/sdk/transport/call_pause.h"

#include <thread>

#include <berth/error.h>

#include "common/steady_clock.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

constexpr absl::Duration kLong = CallAttempts::kSuspectFor;
constexpr absl::Duration kShort = absl::Milliseconds(100);

absl::Status Gone() { return absl::UnavailableError("Socket closed"); }

class CallPauseTest : public testing::Test {
 protected:
  // Plays the death of a broker: it received the call `had` ago and ended with it just now.
  std::optional<CallPause> AfterDeath(const CallLimits& limits, CallAttempts& attempts, absl::Duration had) {
    const absl::Time now = SteadyNow();
    attempts.Sent(now - had);
    absl::Status status = Gone();
    return pauses_.Before(limits, now, &attempts, &status);
  }
  // Plays an answer to another call.
  void Answer() {
    CallAttempts other;
    other.Sent(SteadyNow());
    absl::Status status;
    EXPECT_EQ(pauses_.Before(waits_, SteadyNow(), &other, &status), std::nullopt);
  }
  absl::Duration Rest(const CallPause& pause) const { return pauses_.Rest(waits_, pause, SteadyNow()); }
  bool HasToBeCalled(const std::optional<CallPause>& pause) const {
    return pause.has_value() && pause->called_after.has_value() && Rest(*pause) > absl::ZeroDuration();
  }
  bool IsBackAtOnce(const std::optional<CallPause>& pause) const {
    return pause.has_value() && Rest(*pause) == absl::ZeroDuration();
  }

  Cancellation over_;
  Cancellation cancellation_;
  CallPauses pauses_{&over_, /*called=*/true};
  const CallLimits waits_ = CallLimits::Waiting(absl::InfiniteDuration(), &cancellation_);
};

TEST_F(CallPauseTest, WaitDeadlineIncludesAnswerSlack) {
  const absl::Time before = SteadyNow();
  const CallLimits limits = CallLimits::Waiting(absl::Minutes(1), &cancellation_);
  EXPECT_GE(limits.deadline, before + absl::Minutes(1) + CallLimits::kAnswerSlack);
  EXPECT_EQ(limits.cancellation, &cancellation_);
  EXPECT_TRUE(limits.waits);
  EXPECT_EQ(waits_.deadline, absl::InfiniteFuture());
}

TEST_F(CallPauseTest, LongWaiterRetriesWhenCalled) {
  CallAttempts attempts;
  const std::optional<CallPause> pause = AfterDeath(waits_, attempts, kLong);
  EXPECT_TRUE(HasToBeCalled(pause));
  pauses_.OnReturn();
  EXPECT_TRUE(IsBackAtOnce(pause));
}

TEST_F(CallPauseTest, ShortWaiterRetriesWhenCalled) {
  CallAttempts attempts;
  const std::optional<CallPause> pause = AfterDeath(waits_, attempts, kShort);
  EXPECT_TRUE(HasToBeCalled(pause));
  pauses_.OnReturn();
  EXPECT_TRUE(IsBackAtOnce(pause));
}

TEST_F(CallPauseTest, CallWithoutWaitRetriesAtOnce) {
  for (const absl::Duration had : {kLong, kShort}) {
    CallAttempts attempts;
    const CallLimits limits = {.deadline = absl::InfiniteFuture(), .cancellation = &cancellation_};
    const std::optional<CallPause> pause = AfterDeath(limits, attempts, had);
    EXPECT_TRUE(IsBackAtOnce(pause)) << had;
    EXPECT_EQ(pause->called_after, std::nullopt) << had;
  }
}

TEST_F(CallPauseTest, ObserverRetriesAtOnceWithoutCall) {
  CallPauses pauses(&over_, /*called=*/false);
  CallAttempts attempts;
  const absl::Time now = SteadyNow();
  attempts.Sent(now - kLong);
  absl::Status status = Gone();
  const std::optional<CallPause> pause = pauses.Before(waits_, now, &attempts, &status);
  ASSERT_NE(pause, std::nullopt);
  EXPECT_EQ(pause->called_after, std::nullopt);
  EXPECT_EQ(pauses.Rest(waits_, *pause, now), absl::ZeroDuration());
}

TEST_F(CallPauseTest, UncalledWaiterRetriesAfterThreeSeconds) {
  CallAttempts attempts;
  const absl::Time now = SteadyNow();
  attempts.Sent(now - kLong);
  absl::Status status = Gone();
  const std::optional<CallPause> pause = pauses_.Before(waits_, now, &attempts, &status);
  ASSERT_NE(pause, std::nullopt);
  EXPECT_EQ(pauses_.Rest(waits_, *pause, now), CallPauses::kLongestAway);
  EXPECT_EQ(pauses_.Rest(waits_, *pause, now + absl::Seconds(2)), absl::Seconds(1));
  EXPECT_EQ(pauses_.Rest(waits_, *pause, now + absl::Seconds(3)), absl::ZeroDuration());
  EXPECT_EQ(pauses_.Rest(waits_, *pause, now + absl::Seconds(4)), absl::ZeroDuration());
}

TEST_F(CallPauseTest, ExpiredWaitPausesUntilItsDeadline) {
  CallAttempts attempts;
  const CallLimits limits = CallLimits::Waiting(absl::Seconds(1), &cancellation_);
  const std::optional<CallPause> pause = AfterDeath(limits, attempts, kLong);
  ASSERT_NE(pause, std::nullopt);
  EXPECT_EQ(pause->end, limits.deadline - CallLimits::kAnswerSlack);
  // A call that does not wait has no reason for a long pause.
  CallAttempts tries;
  EXPECT_TRUE(IsBackAtOnce(AfterDeath(CallLimits::Waiting(absl::ZeroDuration()), tries, kShort)));
}

TEST_F(CallPauseTest, ReturnBeforeNoticedDeathCounts) {
  CallAttempts attempts;
  attempts.Sent(SteadyNow() - absl::Seconds(1));
  pauses_.OnReturn();
  absl::Status status = Gone();
  const std::optional<CallPause> pause = pauses_.Before(waits_, SteadyNow(), &attempts, &status);
  EXPECT_TRUE(IsBackAtOnce(pause));
}

TEST_F(CallPauseTest, SecondDeathAfterReturnAwaitsNextBroker) {
  CallAttempts attempts;
  const std::optional<CallPause> first = AfterDeath(waits_, attempts, kLong);
  pauses_.OnReturn();
  EXPECT_TRUE(IsBackAtOnce(first));
  const std::optional<CallPause> second = AfterDeath(waits_, attempts, absl::ZeroDuration());
  EXPECT_TRUE(HasToBeCalled(second));
  pauses_.OnReturn();
  EXPECT_TRUE(IsBackAtOnce(second));
}

TEST_F(CallPauseTest, CallOverDeadBrokersConnectionRetriesAtOnce) {
  // The next broker has called back; this process knows nothing else of it.
  Answer();
  pauses_.OnReturn();
  CallAttempts attempts;
  const std::optional<CallPause> pause = AfterDeath(waits_, attempts, absl::ZeroDuration());
  EXPECT_TRUE(IsBackAtOnce(pause));
  // An attempt on a newer connection ends with a broker that had served.
  EXPECT_TRUE(HasToBeCalled(AfterDeath(waits_, attempts, absl::ZeroDuration())));
}

TEST_F(CallPauseTest, CallFailedByServingBrokerAwaitsReturn) {
  pauses_.OnReturn();
  Answer();
  CallAttempts attempts;
  EXPECT_TRUE(HasToBeCalled(AfterDeath(waits_, attempts, absl::ZeroDuration())));
}

TEST_F(CallPauseTest, TemporaryRefusalIsNotCountedAsDeath) {
  CallAttempts attempts;
  const absl::Time now = SteadyNow();
  attempts.Sent(now - kLong);
  absl::Status soon = RefuseWithRetry(Reason::kDeviceRebuilding, absl::Milliseconds(70), "not now");
  const std::optional<CallPause> pause = pauses_.Before(waits_, now, &attempts, &soon);
  ASSERT_NE(pause, std::nullopt);
  EXPECT_EQ(pause->end, now + absl::Milliseconds(70));
  pauses_.OnReturn();
  EXPECT_EQ(pauses_.Rest(waits_, *pause, now), absl::Milliseconds(70));
}

TEST_F(CallPauseTest, CallIsSentToThreeBrokersAtMost) {
  CallAttempts attempts;
  EXPECT_TRUE(HasToBeCalled(AfterDeath(waits_, attempts, kShort)));
  EXPECT_TRUE(HasToBeCalled(AfterDeath(waits_, attempts, kShort)));
  EXPECT_EQ(AfterDeath(waits_, attempts, kShort), std::nullopt);
}

TEST_F(CallPauseTest, ExpiredCallIsNotRetried) {
  CallAttempts attempts;
  EXPECT_EQ(AfterDeath({.deadline = SteadyNow(), .waits = true}, attempts, kLong), std::nullopt);
}

TEST_F(CallPauseTest, CancelledCallIsNotRetried) {
  CallAttempts attempts;
  attempts.Sent(SteadyNow());
  cancellation_.Cancel();
  absl::Status status = Gone();
  EXPECT_EQ(pauses_.Before(waits_, SteadyNow(), &attempts, &status), std::nullopt);
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
}

TEST_F(CallPauseTest, PauseEndsOnReturnCancellationOrSessionEnd) {
  const CallPause pause = {.end = SteadyNow() + absl::Hours(1), .called_after = SteadyNow()};
  std::thread returns([&] { pauses_.AwaitEnd(waits_, pause); });
  pauses_.OnReturn();
  returns.join();
  const CallPause next = {.end = pause.end, .called_after = SteadyNow()};
  std::thread cancelled([&] { pauses_.AwaitEnd(waits_, next); });
  std::thread ended([&] { pauses_.AwaitEnd(CallLimits::Waiting(absl::InfiniteDuration()), next); });
  cancellation_.Cancel();
  cancelled.join();
  over_.Cancel();
  ended.join();
}

TEST_F(CallPauseTest, ReturnDoesNotShortenUncalledPause) {
  const CallPause pause = {.end = SteadyNow() + absl::Milliseconds(20)};
  std::thread pausing([&] { pauses_.AwaitEnd(waits_, pause); });
  pauses_.OnReturn();
  pausing.join();
  EXPECT_GE(SteadyNow(), pause.end);
}

}  // namespace
}  // namespace berth::internal
