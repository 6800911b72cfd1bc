#include "client/sdk/transport/call_timer.h"

#include <memory>
#include <optional>
#include <vector>

#include "common/notification.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

TEST(CallTimerTest, LateAlarmFiresOnceEarlyAlarmNever) {
  CallTimer timer;
  Notification late;
  const absl::Time deadline = SteadyNow() + absl::Milliseconds(1);
  const CallTimer::Alarm never(&timer, absl::InfiniteFuture(), [] { FAIL(); });
  const CallTimer::Alarm far(&timer, SteadyNow() + absl::Hours(1), [] { FAIL(); });
  // A second call would abort the program.
  const CallTimer::Alarm near(&timer, deadline, [&] { late.Notify(); });
  ASSERT_TRUE(late.WaitForNotificationWithTimeout(kPatience));
  EXPECT_GE(SteadyNow(), deadline + CallTimer::kGrace);
}

TEST(CallTimerTest, EarlierAlarmFiresBeforeLaterSleep) {
  CallTimer timer;
  std::vector<std::unique_ptr<CallTimer::Alarm>> alarms;
  std::vector<std::unique_ptr<Notification>> notified;
  for (const absl::Duration patience : {absl::Hours(2), absl::Hours(1), absl::Milliseconds(2), absl::ZeroDuration(),
                                        -absl::Hours(1)}) {
    notified.push_back(std::make_unique<Notification>());
    alarms.push_back(std::make_unique<CallTimer::Alarm>(&timer, SteadyNow() + patience,
                                                        [late = notified.back().get()] { late->Notify(); }));
  }
  for (size_t i = 2; i < notified.size(); ++i) EXPECT_TRUE(notified[i]->WaitForNotificationWithTimeout(kPatience)) << i;
  EXPECT_FALSE(notified[0]->HasBeenNotified());
  EXPECT_FALSE(notified[1]->HasBeenNotified());
}

TEST(CallTimerTest, DestroyedAlarmDoesNotFire) {
  CallTimer timer;
  Notification next;
  bool fired = false;
  std::optional<CallTimer::Alarm> done(std::in_place, &timer, SteadyNow() + absl::Milliseconds(20),
                                       [&] { fired = true; });
  const CallTimer::Alarm later(&timer, SteadyNow() + absl::Milliseconds(21), [&] { next.Notify(); });
  done.reset();
  // Where this thread was stalled, the alarm fired before its destruction.
  const bool fired_before = fired;
  EXPECT_TRUE(next.WaitForNotificationWithTimeout(kPatience));
  EXPECT_EQ(fired, fired_before);
}

}  // namespace
}  // namespace berth::internal
