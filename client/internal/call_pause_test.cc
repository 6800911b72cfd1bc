#include "client/internal/call_pause.h"

#include <thread>

#include "common/error.h"
#include "common/steady_clock.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

constexpr absl::Duration kLong = CallAttempts::kSuspectFor;
constexpr absl::Duration kShort = absl::Milliseconds(100);

absl::Status Gone() { return absl::UnavailableError("Socket closed"); }

class CallPauseTest : public testing::Test {
 protected:
  // A broker is sent the call, has it for that long, and goes away with it just now.
  std::optional<CallPause> AfterDeath(const CallLimits& limits, CallAttempts& attempts, absl::Duration had) {
    const absl::Time now = SteadyNow();
    attempts.Sent(now - had);
    absl::Status status = Gone();
    return pauses_.Before(limits, now, &attempts, &status);
  }
  // Another call is answered.
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

TEST_F(CallPauseTest, AWaitHasTimeToBeToldThatItIsOver) {
  const absl::Time before = SteadyNow();
  const CallLimits limits = CallLimits::Waiting(absl::Minutes(1), &cancellation_);
  EXPECT_GE(limits.deadline, before + absl::Minutes(1) + CallLimits::kAnswerSlack);
  EXPECT_EQ(limits.cancellation, &cancellation_);
  EXPECT_TRUE(limits.waits);
  EXPECT_EQ(waits_.deadline, absl::InfiniteFuture());
}

TEST_F(CallPauseTest, WhatHasWaitedReturnsInItsTurn) {
  CallAttempts attempts;
  const std::optional<CallPause> pause = AfterDeath(waits_, attempts, kLong);
  EXPECT_TRUE(HasToBeCalled(pause));
  pauses_.OnReturn();
  EXPECT_TRUE(IsBackAtOnce(pause));
}

TEST_F(CallPauseTest, WhatHasJustBegunToWaitReturnsInItsTurnToo) {
  CallAttempts attempts;
  const std::optional<CallPause> pause = AfterDeath(waits_, attempts, kShort);
  EXPECT_TRUE(HasToBeCalled(pause));
  pauses_.OnReturn();
  EXPECT_TRUE(IsBackAtOnce(pause));
}

TEST_F(CallPauseTest, WhatWaitsForNothingIsBackAtOnce) {
  for (const absl::Duration had : {kLong, kShort}) {
    CallAttempts attempts;
    const CallLimits limits = {.deadline = absl::InfiniteFuture(), .cancellation = &cancellation_};
    const std::optional<CallPause> pause = AfterDeath(limits, attempts, had);
    EXPECT_TRUE(IsBackAtOnce(pause)) << had;
    EXPECT_EQ(pause->called_after, std::nullopt) << had;
  }
}

TEST_F(CallPauseTest, AnObserverIsBackAtOnceAsNobodyCallsIt) {
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

TEST_F(CallPauseTest, WhoIsNotCalledComesAfterThreeSeconds) {
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

TEST_F(CallPauseTest, AWaitThatIsOverIsBackToBeToldSo) {
  CallAttempts attempts;
  const CallLimits limits = CallLimits::Waiting(absl::Seconds(1), &cancellation_);
  const std::optional<CallPause> pause = AfterDeath(limits, attempts, kLong);
  ASSERT_NE(pause, std::nullopt);
  EXPECT_EQ(pause->end, limits.deadline - CallLimits::kAnswerSlack);
  // Who waits not at all has nothing to stay away for.
  CallAttempts tries;
  EXPECT_TRUE(IsBackAtOnce(AfterDeath(CallLimits::Waiting(absl::ZeroDuration()), tries, kShort)));
}

TEST_F(CallPauseTest, ABrokerThatCalledBeforeTheOthersEndWasNoticedCounts) {
  CallAttempts attempts;
  attempts.Sent(SteadyNow() - absl::Seconds(1));
  pauses_.OnReturn();
  absl::Status status = Gone();
  const std::optional<CallPause> pause = pauses_.Before(waits_, SteadyNow(), &attempts, &status);
  EXPECT_TRUE(IsBackAtOnce(pause));
}

TEST_F(CallPauseTest, AfterASecondDeathRightAfterAReturnItIsTheNextBrokersToCall) {
  CallAttempts attempts;
  const std::optional<CallPause> first = AfterDeath(waits_, attempts, kLong);
  pauses_.OnReturn();
  EXPECT_TRUE(IsBackAtOnce(first));
  const std::optional<CallPause> second = AfterDeath(waits_, attempts, absl::ZeroDuration());
  EXPECT_TRUE(HasToBeCalled(second));
  pauses_.OnReturn();
  EXPECT_TRUE(IsBackAtOnce(second));
}

TEST_F(CallPauseTest, WhatIsSentOverTheConnectionOfABrokerLongDeadIsNotHeldBack) {
  // The next one has called, and this process has heard nothing of it but that.
  Answer();
  pauses_.OnReturn();
  CallAttempts attempts;
  const std::optional<CallPause> pause = AfterDeath(waits_, attempts, absl::ZeroDuration());
  EXPECT_TRUE(IsBackAtOnce(pause));
  // Over a connection that was made since it dies with a broker that lived.
  EXPECT_TRUE(HasToBeCalled(AfterDeath(waits_, attempts, absl::ZeroDuration())));
}

TEST_F(CallPauseTest, WhatDiesWithABrokerThatAnsweredOthersHasToBeCalled) {
  pauses_.OnReturn();
  Answer();
  CallAttempts attempts;
  EXPECT_TRUE(HasToBeCalled(AfterDeath(waits_, attempts, absl::ZeroDuration())));
}

TEST_F(CallPauseTest, ARefusalForNowIsNoDeath) {
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

TEST_F(CallPauseTest, WhatThreeBrokersDieOfIsSentToNoFourth) {
  CallAttempts attempts;
  EXPECT_TRUE(HasToBeCalled(AfterDeath(waits_, attempts, kShort)));
  EXPECT_TRUE(HasToBeCalled(AfterDeath(waits_, attempts, kShort)));
  EXPECT_EQ(AfterDeath(waits_, attempts, kShort), std::nullopt);
}

TEST_F(CallPauseTest, WhatHasNoTimeLeftIsNotSentAgain) {
  CallAttempts attempts;
  EXPECT_EQ(AfterDeath({.deadline = SteadyNow(), .waits = true}, attempts, kLong), std::nullopt);
}

TEST_F(CallPauseTest, WhatIsCancelledIsNotSentAgainAndSaysSo) {
  CallAttempts attempts;
  attempts.Sent(SteadyNow());
  cancellation_.Cancel();
  absl::Status status = Gone();
  EXPECT_EQ(pauses_.Before(waits_, SteadyNow(), &attempts, &status), std::nullopt);
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
}

TEST_F(CallPauseTest, WhoPausesIsWokenByAReturnACancellationAndTheEndOfTheSession) {
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

TEST_F(CallPauseTest, AReturnIsNoReasonForWhoIsNotCalledToComeSooner) {
  const CallPause pause = {.end = SteadyNow() + absl::Milliseconds(20)};
  std::thread pausing([&] { pauses_.AwaitEnd(waits_, pause); });
  pauses_.OnReturn();
  pausing.join();
  EXPECT_GE(SteadyNow(), pause.end);
}

}  // namespace
}  // namespace berth::internal
