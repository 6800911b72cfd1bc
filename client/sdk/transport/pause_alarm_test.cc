#include "client/sdk/transport/pause_alarm.h"

#include <functional>
#include <memory>
#include <thread>

#include <berth/cancellation.h>

#include "common/notification.h"
#include "common/steady_clock.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

class PauseAlarmTest : public testing::Test {
 protected:
  // A pause that ends only by a return, a cancellation or the end of the session.
  static CallPause Long() { return {.end = SteadyNow() + absl::Hours(1), .called_after = SteadyNow()}; }
  // Starts a pause and calls `meanwhile`. Returns whether the pause ended.
  bool Ends(const CallPause& pause, const std::function<void()>& meanwhile) {
    auto ended = std::make_shared<Notification>();
    alarm_.Start(limits_, pause, [ended] { ended->Notify(); });
    meanwhile();
    return ended->WaitForNotificationWithTimeout(kPatience);
  }

  Cancellation over_;
  Cancellation cancellation_;
  CallPauses pauses_{&over_, /*called=*/true};
  CallTimer timer_;
  const CallLimits limits_ = CallLimits::Waiting(absl::InfiniteDuration(), &cancellation_);
  PauseAlarm alarm_{&pauses_, &timer_};
};

TEST_F(PauseAlarmTest, ExpiredPauseEndsAtOnce) {
  bool ended = false;
  alarm_.Start(limits_, {.end = SteadyNow()}, [&] { ended = true; });
  EXPECT_TRUE(ended);
}

TEST_F(PauseAlarmTest, UncalledPauseEndsOnTime) {
  const CallPause pause = {.end = SteadyNow() + absl::Milliseconds(20), .called_after = SteadyNow()};
  EXPECT_TRUE(Ends(pause, [] {}));
  EXPECT_GE(SteadyNow(), pause.end);
}

TEST_F(PauseAlarmTest, ReturnEndsPause) {
  EXPECT_TRUE(Ends(Long(), [&] { pauses_.OnReturn(); }));
}

TEST_F(PauseAlarmTest, CancellationEndsPause) {
  EXPECT_TRUE(Ends(Long(), [&] { cancellation_.Cancel(); }));
}

TEST_F(PauseAlarmTest, SessionEndEndsPause) {
  EXPECT_TRUE(Ends(Long(), [&] { over_.Cancel(); }));
}

TEST_F(PauseAlarmTest, ReturnDuringStartOfPauseIsNotMissed) {
  for (int i = 0; i < 1000; ++i) {
    const CallPause pause = Long();
    std::thread returns([&] { pauses_.OnReturn(); });
    const bool ended = Ends(pause, [] {});
    returns.join();
    ASSERT_TRUE(ended) << i;
  }
}

TEST_F(PauseAlarmTest, CallbackMayPauseAgainAndDestroyAlarm) {
  auto alarm = std::make_unique<PauseAlarm>(&pauses_, &timer_);
  Notification ended;
  alarm->Start(limits_, Long(), [&] {
    alarm->Start(limits_, {.end = SteadyNow() + absl::Milliseconds(1)}, [&] {
      alarm.reset();
      ended.Notify();
    });
  });
  pauses_.OnReturn();
  EXPECT_TRUE(ended.WaitForNotificationWithTimeout(kPatience));
}

}  // namespace
}  // namespace berth::internal
