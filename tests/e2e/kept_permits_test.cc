// Permits that are kept between uses, over processes: whoever comes has what is idle, whatever its keeper does.

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/permit.h"
#include "client/session.h"
#include "common/error.h"
#include "common/unique_fd.h"
#include "gtest/gtest.h"
#include "tests/support/actor_handle.h"
#include "tests/support/proc.h"
#include "tests/support/test_daemon.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr char kOnePermit[] = "BERTH_GPU_TEST_CONCURRENCY=1";

v1::Pool PoolOf(TestDaemon& daemon) { return Must(daemon.inspector().ListPools()).pools(0); }

Actor Keeper(const TestDaemon& daemon) {
  Actor actor(daemon, {.open = false});
  actor.Do("open cache");
  return actor;
}

// A process that keeps the pool's one permit and does not use it.
Actor IdleKeeper(TestDaemon& daemon) {
  Actor actor = Keeper(daemon);
  actor.Do("acquire p");
  actor.Do("release p");
  EXPECT_EQ(PoolOf(daemon).out(), 1u);
  EXPECT_EQ(PoolOf(daemon).kept(), 1u);
  return actor;
}

TEST(KeptPermitsTest, AreUsedAgainWithoutACallAndShown) {
  TestDaemon daemon({.environment = {kOnePermit}});
  Actor keeper = IdleKeeper(daemon);
  EXPECT_TRUE(Must(daemon.inspector().ListPermits()).permits(0).kept());
  keeper.Do("spin 10000");
  EXPECT_EQ(PoolOf(daemon).granted_total(), 1u);
  keeper.Do("acquire p");
  EXPECT_FALSE(Must(daemon.inspector().ListPermits()).permits(0).kept());
  keeper.Do("release p");
  keeper.Quit();
  daemon.ExpectBooksBack();
}

TEST(KeptPermitsTest, WhoIsStoppedWithAnIdleOneKeepsNobodyWaiting) {
  TestDaemon daemon({.environment = {kOnePermit}});
  Actor keeper = IdleKeeper(daemon);
  keeper.process().Signal(SIGSTOP);
  ASSERT_TRUE(Eventually([&] { return StateOf(keeper.pid()) == 'T'; }));
  Actor other(daemon);
  EXPECT_TRUE(Ok(other.Ask("acquire p try")));
  other.Do("release p");
  keeper.process().Signal(SIGCONT);
  // It goes on as if nothing had been.
  EXPECT_TRUE(Ok(keeper.Ask("acquire p")));
  keeper.Do("release p");
  keeper.Quit();
  other.Quit();
  daemon.ExpectBooksBack();
}

TEST(KeptPermitsTest, WhoIsStoppedBeforeItTellsThatItPutItBackKeepsNobodyWaiting) {
  TestDaemon daemon({.environment = {kOnePermit}});
  Actor keeper = Keeper(daemon);
  keeper.Do("acquire p");
  Actor other(daemon);
  other.Tell("acquire p");
  ASSERT_TRUE(Eventually([&] { return PoolOf(daemon).waiters() == 1; }));
  keeper.Do("word idle");
  keeper.process().Signal(SIGSTOP);
  EXPECT_TRUE(Ok(other.Answer()));
  keeper.process().Signal(SIGCONT);
  // What it believes to have is another's.
  EXPECT_TRUE(Ok(keeper.Ask("release p")));
  EXPECT_EQ(PoolOf(daemon).out(), 1u);
  keeper.Quit();
  other.Quit();
  daemon.ExpectBooksBack();
}

TEST(KeptPermitsTest, WhoUsesItWhileOthersWaitHandsItOverWhenItPutsItBack) {
  TestDaemon daemon({.environment = {kOnePermit}});
  Actor keeper = Keeper(daemon);
  Actor other(daemon);
  for (int i = 0; i < 20; ++i) {
    keeper.Do("acquire p");
    other.Tell("acquire p");
    ASSERT_TRUE(Eventually([&] { return PoolOf(daemon).waiters() == 1; }));
    keeper.Do("release p");
    ASSERT_TRUE(Ok(other.Answer()));
    other.Do("release p");
  }
  EXPECT_EQ(PoolOf(daemon).peak(), 1u);
  keeper.Quit();
  other.Quit();
  daemon.ExpectBooksBack();
}

TEST(KeptPermitsTest, AKilledKeepersUnitComesBackIdleOrUsed) {
  TestDaemon daemon({.environment = {kOnePermit}});
  for (const bool used : {false, true}) {
    Actor keeper = IdleKeeper(daemon);
    if (used) keeper.Do("acquire p");
    Actor other(daemon);
    if (used) other.Tell("acquire p");
    keeper.Kill();
    if (!used) other.Tell("acquire p");
    EXPECT_TRUE(Ok(other.Answer())) << used;
    EXPECT_EQ(PoolOf(daemon).out(), 1u);
    other.Quit();
    EXPECT_TRUE(Eventually([&] { return PoolOf(daemon).out() == 0; }));
  }
  daemon.ExpectBooksBack();
}

TEST(KeptPermitsTest, TheEndOfTheSessionBringsBackWhatIsIdle) {
  TestDaemon daemon({.environment = {kOnePermit}});
  Actor ends = IdleKeeper(daemon);
  ends.Do("end");
  EXPECT_TRUE(Eventually([&] { return PoolOf(daemon).out() == 0; }));
  EXPECT_FALSE(ends.Ask("acquire p").ok());
  Actor closes = IdleKeeper(daemon);
  closes.Do("close");
  EXPECT_TRUE(Eventually([&] { return PoolOf(daemon).out() == 0; }));
  ends.Quit();
  closes.Quit();
  daemon.ExpectBooksBack();
}

TEST(KeptPermitsTest, AForkedChildIsToldSoAndTouchesNothing) {
  TestDaemon daemon({.environment = {kOnePermit}});
  Actor keeper = IdleKeeper(daemon);
  // Idle, then used: neither is the child's.
  for (int i = 0; i < 2; ++i) {
    const std::string said = keeper.Do("fork-try");
    EXPECT_TRUE(absl::StartsWith(said, "FAILED_PRECONDITION")) << said;
    EXPECT_FALSE(absl::StrContains(said, "OK")) << said;
    EXPECT_EQ(PoolOf(daemon).kept(), i == 0 ? 1u : 0u);
    if (i == 0) keeper.Do("acquire p");
  }
  EXPECT_TRUE(Ok(keeper.Ask("release p")));
  EXPECT_EQ(PoolOf(daemon).kept(), 1u);
  keeper.Quit();
  daemon.ExpectBooksBack();
}

TEST(KeptPermitsTest, ALiarWithItsWordKeepsItsOwnPermitAtMost) {
  TestDaemon daemon({.config = "[pools.gpu-tests]\ncap = 2\n"});
  Actor liar = Keeper(daemon);
  liar.Do("acquire p");
  Actor honest = Keeper(daemon);
  honest.Do("acquire p");
  Actor other(daemon);
  other.Tell("acquire p");
  ASSERT_TRUE(Eventually([&] { return PoolOf(daemon).waiters() == 1; }));
  // Junk is a permit in use; deaf, it hears of nobody who waits.
  liar.Do("word junk");
  liar.Do("word deaf");
  honest.Do("release p");
  EXPECT_TRUE(Ok(other.Answer()));
  EXPECT_EQ(PoolOf(daemon).out(), 2u);
  // Given back by the daemon's way it is back, whatever the word says.
  EXPECT_TRUE(Ok(liar.Ask("release p")));
  EXPECT_TRUE(Eventually([&] { return PoolOf(daemon).out() == 1; }));
  liar.Do("word idle");
  EXPECT_EQ(PoolOf(daemon).out(), 1u);
  EXPECT_EQ(PoolOf(daemon).peak(), 2u);
  for (Actor* actor : {&liar, &honest, &other}) actor->Quit();
  daemon.ExpectBooksBack();
}

TEST(KeptPermitsTest, WhatIsKeptIsTakenByTheNextBrokerToo) {
  TestDaemon daemon({.environment = {kOnePermit}});
  Actor keeper = IdleKeeper(daemon);
  const pid_t broker = daemon.broker();
  ASSERT_EQ(::kill(broker, SIGKILL), 0);
  ASSERT_TRUE(Eventually([&] { return !IsAlive(broker); }));
  EXPECT_EQ(PoolOf(daemon).out(), 1u);
  Actor other(daemon);
  EXPECT_TRUE(Ok(other.Ask("acquire p")));
  EXPECT_TRUE(Refused(keeper.Ask("acquire q try"), Reason::kNoPermit));
  EXPECT_TRUE(Ok(other.Ask("release p")));
  EXPECT_TRUE(Ok(keeper.Ask("acquire q")));
  keeper.Quit();
  other.Quit();
  EXPECT_TRUE(Eventually([&] { return PoolOf(daemon).out() == 0; }));
}

TEST(KeptPermitsTest, ThreadsOfOneProcessShareWhatIsKeptOneAtATimeAndNestAsEver) {
  TestDaemon daemon({.environment = {kOnePermit}});
  {
    const std::shared_ptr<Session> session =
        Must(Session::Open({.folder = daemon.folder(), .always_new = true, .cache_permits = true}));
    std::atomic<int> inside = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 300; ++i) {
          Permit permit = Must(Permit::Acquire(session));
          EXPECT_EQ(++inside, 1);
          const Permit nested = Must(Permit::Acquire(session));
          --inside;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    // What is told to others is not kept: they may go on in it.
    Permit shared = Must(Permit::Acquire(session));
    const std::string key = shared.Share();
    std::optional<Permit> inner;
    std::thread([&] { inner = Must(Permit::Acquire(session, {.holder_key = key})); }).join();
    EXPECT_TRUE(Ok(shared.Release()));
    EXPECT_TRUE(Refused(Permit::TryAcquire(session), Reason::kNoPermit));
    EXPECT_TRUE(Ok(inner->Release()));
    EXPECT_TRUE(Ok(Permit::TryAcquire(session)));
    // What cannot nest is told so, and does not wait for its own.
    Permit held = Must(Permit::Acquire(session));
    EXPECT_TRUE(Refused(Permit::Acquire(session, {.units = 2}), Reason::kNestedOverHeld));
    EXPECT_TRUE(Refused(Permit::Acquire(session, {.exclusive = true}), Reason::kNestedOverHeld));
  }
  daemon.ExpectBooksBack();
}

TEST(KeptPermitsTest, ManyKeepersNeverExceedTheCapAndAllGetTheirTurn) {
  TestDaemon daemon;
  const std::string counter = daemon.folder() + "/../counter";
  {
    const UniqueFd file(::open(counter.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_EQ(::ftruncate(file.get(), 4096), 0);
  }
  std::vector<std::unique_ptr<Actor>> actors;
  for (int i = 0; i < 8; ++i) {
    actors.push_back(std::make_unique<Actor>(daemon, ActorOptions{.open = false}));
    actors.back()->Do(i % 2 == 0 ? "open cache" : "open");
  }
  for (const auto& actor : actors) actor->Tell(absl::StrCat("cycle 8 ", counter));
  for (const auto& actor : actors) {
    const absl::StatusOr<std::string> most = actor->Answer();
    ASSERT_TRUE(Ok(most));
    EXPECT_LE(std::stoi(*most), 2);
  }
  EXPECT_EQ(PoolOf(daemon).peak(), 2u);
  actors.clear();
  daemon.ExpectBooksBack();
}

TEST(AsyncPermitsTest, AreGrantedInTurnCancelledByTheirStopTokenAndLeaveNothing) {
  TestDaemon daemon({.environment = {kOnePermit}});
  Actor actor(daemon);
  actor.Do("async a");
  actor.Do("join a");
  actor.Do("async b");
  actor.Do("async c");
  actor.Do("async d wait_ms=200");
  ASSERT_TRUE(Eventually([&] { return PoolOf(daemon).waiters() == 3; }));
  actor.Do("stop b");
  EXPECT_TRUE(absl::IsCancelled(actor.Ask("join b").status()));
  EXPECT_TRUE(Refused(actor.Ask("join d"), Reason::kWaitTimedOut));
  EXPECT_TRUE(Eventually([&] { return PoolOf(daemon).waiters() == 1; }));
  actor.Do("release a");
  actor.Do("join c");
  EXPECT_EQ(PoolOf(daemon).out(), 1u);
  // Others nest in it by its key.
  actor.Do(absl::StrCat("acquire e key=", actor.Do("share c")));
  actor.Do("release c");
  EXPECT_EQ(PoolOf(daemon).out(), 1u);
  actor.Do("release e");
  EXPECT_EQ(PoolOf(daemon).out(), 0u);
  // What waits when its session ends is told.
  actor.Do("acquire f");
  actor.Do("async g");
  ASSERT_TRUE(Eventually([&] { return PoolOf(daemon).waiters() == 1; }));
  actor.Do("end");
  EXPECT_FALSE(actor.Ask("join g").ok());
  actor.Quit();
  daemon.ExpectBooksBack();
}

TEST(AsyncPermitsTest, AWaitIsEndedByAStopTokenWhereAThreadWaitsToo) {
  TestDaemon daemon({.environment = {kOnePermit}});
  Actor actor(daemon);
  actor.Do("acquire a key=1");
  actor.Do("begin b key=2");
  ASSERT_TRUE(Eventually([&] { return PoolOf(daemon).waiters() == 1; }));
  actor.Do("stop b");
  EXPECT_TRUE(absl::IsCancelled(actor.Ask("join b").status()));
  EXPECT_TRUE(Eventually([&] { return PoolOf(daemon).waiters() == 0; }));
  actor.Quit();
  daemon.ExpectBooksBack();
}

TEST(AsyncPermitsTest, ManyWaitWithoutAThreadEach) {
  TestDaemon daemon({.environment = {kOnePermit}});
  {
    const std::shared_ptr<Session> session =
        Must(Session::Open({.folder = daemon.folder(), .always_new = true}));
    constexpr int kWaiters = 100;
    std::atomic<int> granted = 0;
    std::atomic<int> done = 0;
    for (int i = 0; i < kWaiters; ++i) {
      Permit::AcquireAsync(session, {}, [&](absl::StatusOr<Permit> permit) {
        granted += permit.ok() ? 1 : 0;
        permit = absl::CancelledError();
        ++done;
      });
    }
    EXPECT_TRUE(Eventually([&] { return done == kWaiters; }));
    EXPECT_EQ(granted, kWaiters);
  }
  daemon.ExpectBooksBack();
}

}  // namespace
}  // namespace berth::testing
