#include "daemon/supervisor/processes/supervision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/device/worker/worker_exit.h"

namespace berth {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using State = Supervision::State;
using Then = Supervision::Then;

constexpr MonotonicTime kStart = MonotonicTime(seconds(1000));

ProcessEnd Signalled(int number) { return {.signal = number}; }
ProcessEnd Exited(WorkerExit exit) { return {.code = static_cast<int>(exit)}; }

TEST(SupervisionTest, WorkerRestartsThreeTimesIn60Seconds) {
  Supervision supervision;
  for (const uint32_t left : {2u, 1u, 0u}) {
    EXPECT_TRUE(supervision.OnEnded(kStart, Signalled(9)));
    EXPECT_EQ(supervision.state(), State::kRunning);
    EXPECT_EQ(supervision.restarts_left(), left);
  }
  EXPECT_FALSE(supervision.OnEnded(kStart + seconds(59), Signalled(11)));
  EXPECT_EQ(supervision.state(), State::kStopped);
  EXPECT_EQ(supervision.last_failure(), "the worker ended: signal 11");
}

TEST(SupervisionTest, RestartIsForgottenAfter60SecondsAsChange) {
  Supervision supervision;
  EXPECT_EQ(supervision.next_change(), MonotonicTime::max());
  supervision.OnEnded(kStart, Exited(WorkerExit::kFailed));
  EXPECT_EQ(supervision.next_change(), kStart + seconds(60));
  EXPECT_FALSE(supervision.OnTime(kStart + seconds(59)));
  EXPECT_TRUE(supervision.OnTime(kStart + seconds(60)));
  EXPECT_EQ(supervision.restarts_left(), 3u);
  EXPECT_EQ(supervision.next_change(), MonotonicTime::max());
}

TEST(SupervisionTest, WorkerOnDemandIsIdleBetweenRequests) {
  Supervision supervision(/*on_demand=*/true);
  EXPECT_EQ(supervision.state(), State::kIdle);
  for (const uint32_t left : {2u, 1u, 0u}) {
    EXPECT_TRUE(supervision.OnWanted());
    EXPECT_FALSE(supervision.OnWanted()) << "it is there";
    EXPECT_EQ(supervision.state(), State::kRunning);
    EXPECT_FALSE(supervision.OnEnded(kStart, Signalled(9)));
    EXPECT_EQ(supervision.state(), State::kIdle);
    EXPECT_EQ(supervision.restarts_left(), left);
  }
  EXPECT_TRUE(supervision.OnWanted());
  EXPECT_FALSE(supervision.OnEnded(kStart, Signalled(9)));
  EXPECT_EQ(supervision.state(), State::kStopped);
  EXPECT_FALSE(supervision.OnWanted());
  EXPECT_FALSE(supervision.OnEnabled());
  EXPECT_EQ(supervision.state(), State::kIdle);
  EXPECT_EQ(supervision.restarts_left(), 3u);
}

TEST(SupervisionTest, OrderedEndOfDemandWorkerCostsNoRestart) {
  Supervision supervision(/*on_demand=*/true);
  supervision.OnWanted();
  supervision.OnKilled(kStart, Then::kRestart, "");
  EXPECT_FALSE(supervision.OnEnded(kStart, Signalled(9)));
  EXPECT_EQ(supervision.state(), State::kIdle);
  EXPECT_EQ(supervision.restarts_left(), 3u);
  EXPECT_EQ(supervision.last_failure(), "");
}

TEST(SupervisionTest, WorkersExitDecidesOnRestart) {
  for (const auto& [end, again] :
       std::vector<std::pair<ProcessEnd, bool>>{{Signalled(9), true},
                                                {Exited(WorkerExit::kDone), true},
                                                {Exited(WorkerExit::kFailed), true},
                                                {Exited(WorkerExit::kPoisoned), true},
                                                {Exited(WorkerExit::kUnjudged), true},
                                                {Exited(WorkerExit::kUnusable), false},
                                                {Exited(WorkerExit::kDeviceMissing), false},
                                                {Exited(WorkerExit::kDeviceLost), false}}) {
    Supervision supervision;
    EXPECT_EQ(supervision.OnEnded(kStart, end), again) << end.ToString();
    EXPECT_EQ(supervision.state(), again ? State::kRunning : State::kStopped) << end.ToString();
    EXPECT_NE(supervision.last_failure(), "") << end.ToString();
  }
  EXPECT_TRUE(IsDeviceLost(Exited(WorkerExit::kDeviceLost)));
  EXPECT_FALSE(IsDeviceLost(Signalled(13)));
}

TEST(SupervisionTest, HungWorkersEndCountsWithItsReason) {
  Supervision supervision;
  supervision.OnKilled(kStart, Then::kAsByItself, "it hangs");
  EXPECT_EQ(supervision.state(), State::kEnding);
  EXPECT_EQ(supervision.next_change(), kStart + seconds(2));
  EXPECT_TRUE(supervision.OnEnded(kStart + milliseconds(1), Signalled(9)));
  EXPECT_EQ(supervision.last_failure(), "it hangs");
  EXPECT_EQ(supervision.restarts_left(), 2u);
}

TEST(SupervisionTest, OrderedRestartDoesNotCount) {
  Supervision supervision;
  for (int i = 0; i < 10; ++i) {
    supervision.OnKilled(kStart, Then::kRestart, "ordered");
    EXPECT_TRUE(supervision.OnEnded(kStart, Signalled(9)));
  }
  EXPECT_EQ(supervision.restarts_left(), 3u);
}

TEST(SupervisionTest, FinalKillOverridesOrderedRestart) {
  Supervision supervision;
  supervision.OnKilled(kStart, Then::kRestart, "ordered");
  supervision.OnKilled(kStart, Then::kStop, "dropped");
  supervision.OnKilled(kStart, Then::kRestart, "ordered again");
  EXPECT_FALSE(supervision.OnEnded(kStart, Signalled(9)));
  EXPECT_EQ(supervision.state(), State::kStopped);
  EXPECT_EQ(supervision.last_failure(), "dropped");
}

TEST(SupervisionTest, WorkerSurvivingSigkillIsAbandonedUntilItEnds) {
  Supervision supervision;
  supervision.OnKilled(kStart, Then::kAsByItself, "it hangs");
  EXPECT_FALSE(supervision.OnTime(kStart + seconds(2) - milliseconds(1)));
  EXPECT_TRUE(supervision.OnTime(kStart + seconds(2)));
  EXPECT_EQ(supervision.state(), State::kAbandoned);
  EXPECT_EQ(supervision.restarts_left(), 0u);
  EXPECT_THAT(supervision.last_failure(), HasSubstr("it hangs; it did not end within 2 s of SIGKILL"));
  EXPECT_EQ(supervision.next_change(), MonotonicTime::max());
  EXPECT_FALSE(supervision.OnEnabled()) << "there is no other while it is there";
  EXPECT_EQ(supervision.state(), State::kAbandoned);
  EXPECT_FALSE(supervision.OnEnded(kStart + seconds(100), Signalled(9)));
  EXPECT_EQ(supervision.state(), State::kStopped);
  EXPECT_TRUE(supervision.OnEnabled());
  EXPECT_EQ(supervision.state(), State::kRunning);
}

TEST(SupervisionTest, EnablingResetsOnlyStoppedDevices) {
  Supervision supervision;
  EXPECT_FALSE(supervision.OnEnabled());
  for (int i = 0; i < 4; ++i) supervision.OnEnded(kStart, Signalled(9));
  ASSERT_EQ(supervision.state(), State::kStopped);
  EXPECT_EQ(supervision.restarts_left(), 0u);
  EXPECT_TRUE(supervision.OnEnabled());
  EXPECT_EQ(supervision.restarts_left(), 3u);
  EXPECT_EQ(supervision.last_failure(), "the worker ended: signal 9");
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(supervision.OnEnded(kStart, Signalled(9)));
  EXPECT_FALSE(supervision.OnEnded(kStart, Signalled(9)));
}

TEST(SupervisionTest, UnstartableWorkerStopsDevice) {
  Supervision supervision;
  supervision.OnEnded(kStart, Signalled(9));
  supervision.OnNotStarted("no processes left");
  EXPECT_EQ(supervision.state(), State::kStopped);
  EXPECT_EQ(supervision.last_failure(), "no processes left");
  EXPECT_TRUE(supervision.OnEnabled());
}

}  // namespace
}  // namespace berth
