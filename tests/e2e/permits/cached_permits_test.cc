// Permits that stay cached between uses, across processes: a newcomer gets an idle permit, whatever its owner process
// does.

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <berth/error.h>
#include <berth/permit.h>
#include <berth/session.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/permit.pb.h"
#include "common/os/unique_fd.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/proc.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr char kOnePermit[] = "BERTH_GPU_TEST_CONCURRENCY=1";

v1::Pool PoolOf(TestDaemon& daemon) { return Must(daemon.inspector().ListPools()).pools(0); }

// A process that caches a permit without using it.
Actor CachingActor(TestDaemon& daemon) {
  Actor actor(daemon, {.open = false});
  actor.Do("open cache");
  const uint64_t before = PoolOf(daemon).kept();
  // The daemon may not have the acknowledgement of the process's page at the first permit.
  EXPECT_TRUE(Eventually([&] {
    actor.Do("acquire p");
    actor.Do("release p");
    return PoolOf(daemon).kept() > before;
  }));
  return actor;
}

TEST(CachedPermitsTest, CachedPermitIsReusedWithoutCallAndShown) {
  TestDaemon daemon({.environment = {kOnePermit}});
  Actor cacher = CachingActor(daemon);
  EXPECT_TRUE(Must(daemon.inspector().ListPermits()).permits(0).kept());
  const uint64_t before = PoolOf(daemon).granted_total();
  cacher.Do("spin 10000");
  EXPECT_EQ(PoolOf(daemon).granted_total(), before);
  cacher.Do("acquire p");
  EXPECT_FALSE(Must(daemon.inspector().ListPermits()).permits(0).kept());
  cacher.Do("release p");
  cacher.Quit();
  daemon.ExpectAccountsBack();
}

TEST(CachedPermitsTest, StoppedOwnerOfIdlePermitDelaysNoWaiter) {
  TestDaemon daemon({.environment = {kOnePermit}});
  Actor cacher = CachingActor(daemon);
  cacher.process().Signal(SIGSTOP);
  ASSERT_TRUE(Eventually([&] { return StateOf(cacher.pid()) == 'T'; }));
  Actor other(daemon);
  EXPECT_TRUE(Ok(other.Ask("acquire p try")));
  other.Do("release p");
  cacher.process().Signal(SIGCONT);
  // The owner process continues as if nothing had happened.
  EXPECT_TRUE(Ok(cacher.Ask("acquire p")));
  cacher.Do("release p");
  cacher.Quit();
  other.Quit();
  daemon.ExpectAccountsBack();
}

TEST(CachedPermitsTest, StoppedOwnerReturningPermitDelaysNoWaiter) {
  TestDaemon daemon({.environment = {kOnePermit}});
  Actor cacher = CachingActor(daemon);
  cacher.Do("acquire p");
  Actor other(daemon);
  other.SendLine("acquire p");
  ASSERT_TRUE(Eventually([&] { return PoolOf(daemon).waiters() == 1; }));
  cacher.Do("slot idle");
  cacher.process().Signal(SIGSTOP);
  EXPECT_TRUE(Ok(other.Answer()));
  cacher.process().Signal(SIGCONT);
  // The permit that it believes to hold is another client's.
  EXPECT_TRUE(Ok(cacher.Ask("release p")));
  EXPECT_EQ(PoolOf(daemon).out(), 1u);
  cacher.Quit();
  other.Quit();
  daemon.ExpectAccountsBack();
}

TEST(CachedPermitsTest, WantedPermitIsHandedOverOnReturn) {
  TestDaemon daemon({.environment = {kOnePermit}});
  Actor cacher = CachingActor(daemon);
  Actor other(daemon);
  for (int i = 0; i < 20; ++i) {
    cacher.Do("acquire p");
    other.SendLine("acquire p");
    ASSERT_TRUE(Eventually([&] { return PoolOf(daemon).waiters() == 1; }));
    cacher.Do("release p");
    ASSERT_TRUE(Ok(other.Answer()));
    other.Do("release p");
  }
  EXPECT_EQ(PoolOf(daemon).peak(), 1u);
  cacher.Quit();
  other.Quit();
  daemon.ExpectAccountsBack();
}

TEST(CachedPermitsTest, KilledOwnersPermitReturnsIdleOrUsed) {
  TestDaemon daemon({.environment = {kOnePermit}});
  for (const bool used : {false, true}) {
    Actor cacher = CachingActor(daemon);
    if (used) cacher.Do("acquire p");
    Actor other(daemon);
    if (used) other.SendLine("acquire p");
    cacher.Kill();
    if (!used) other.SendLine("acquire p");
    EXPECT_TRUE(Ok(other.Answer())) << used;
    EXPECT_EQ(PoolOf(daemon).out(), 1u);
    other.Quit();
    EXPECT_TRUE(Eventually([&] { return PoolOf(daemon).out() == 0; }));
  }
  daemon.ExpectAccountsBack();
}

TEST(CachedPermitsTest, SessionEndReturnsIdlePermit) {
  TestDaemon daemon({.environment = {kOnePermit}});
  Actor ends = CachingActor(daemon);
  ends.Do("end");
  EXPECT_TRUE(Eventually([&] { return PoolOf(daemon).out() == 0; }));
  EXPECT_FALSE(ends.Ask("acquire p").ok());
  Actor closes = CachingActor(daemon);
  closes.Do("close");
  EXPECT_TRUE(Eventually([&] { return PoolOf(daemon).out() == 0; }));
  ends.Quit();
  closes.Quit();
  daemon.ExpectAccountsBack();
}

TEST(CachedPermitsTest, ForkedChildIsRejectedAndChangesNothing) {
  TestDaemon daemon({.environment = {kOnePermit}});
  Actor cacher = CachingActor(daemon);
  // Idle, then in use: the child gets neither.
  for (int i = 0; i < 2; ++i) {
    const std::string said = cacher.Do("fork-try");
    EXPECT_TRUE(absl::StartsWith(said, "FAILED_PRECONDITION")) << said;
    EXPECT_FALSE(absl::StrContains(said, "OK")) << said;
    EXPECT_EQ(PoolOf(daemon).kept(), i == 0 ? 1u : 0u);
    if (i == 0) cacher.Do("acquire p");
  }
  EXPECT_TRUE(Ok(cacher.Ask("release p")));
  EXPECT_EQ(PoolOf(daemon).kept(), 1u);
  cacher.Quit();
  daemon.ExpectAccountsBack();
}

TEST(CachedPermitsTest, ForgedSlotRetainsAtMostOwnPermit) {
  TestDaemon daemon({.config = "[pools.gpu-tests]\ncap = 2\n"});
  Actor liar = CachingActor(daemon);
  liar.Do("acquire p");
  Actor honest = CachingActor(daemon);
  honest.Do("acquire p");
  Actor other(daemon);
  other.SendLine("acquire p");
  ASSERT_TRUE(Eventually([&] { return PoolOf(daemon).waiters() == 1; }));
  // A junk value means a permit in use; a deaf process does not see that anyone waits.
  liar.Do("slot junk");
  liar.Do("slot deaf");
  honest.Do("release p");
  EXPECT_TRUE(Ok(other.Answer()));
  EXPECT_EQ(PoolOf(daemon).out(), 2u);
  // A release through the daemon takes effect, whatever the permit slot holds.
  EXPECT_TRUE(Ok(liar.Ask("release p")));
  EXPECT_TRUE(Eventually([&] { return PoolOf(daemon).out() == 1; }));
  liar.Do("slot idle");
  EXPECT_EQ(PoolOf(daemon).out(), 1u);
  EXPECT_EQ(PoolOf(daemon).peak(), 2u);
  for (Actor* actor : {&liar, &honest, &other}) actor->Quit();
  daemon.ExpectAccountsBack();
}

TEST(CachedPermitsTest, CachedPermitIsTakenByNextBroker) {
  TestDaemon daemon({.environment = {kOnePermit}});
  Actor cacher = CachingActor(daemon);
  const pid_t broker = daemon.broker();
  ASSERT_EQ(::kill(broker, SIGKILL), 0);
  ASSERT_TRUE(Eventually([&] { return !IsAlive(broker); }));
  EXPECT_EQ(PoolOf(daemon).out(), 1u);
  Actor other(daemon);
  EXPECT_TRUE(Ok(other.Ask("acquire p")));
  EXPECT_TRUE(Refused(cacher.Ask("acquire q try"), Reason::kNoPermit));
  EXPECT_TRUE(Ok(other.Ask("release p")));
  EXPECT_TRUE(Ok(cacher.Ask("acquire q")));
  cacher.Quit();
  other.Quit();
  EXPECT_TRUE(Eventually([&] { return PoolOf(daemon).out() == 0; }));
}

TEST(CachedPermitsTest, ThreadsShareCachedPermitInTurnAndNest) {
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
    // A shared permit is not cached: other threads may continue in it.
    Permit shared = Must(Permit::Acquire(session));
    const std::string key = shared.Share();
    std::optional<Permit> inner;
    std::thread([&] { inner = Must(Permit::Acquire(session, {.holder_key = key})); }).join();
    EXPECT_TRUE(Ok(shared.Release()));
    EXPECT_TRUE(Refused(Permit::TryAcquire(session), Reason::kNoPermit));
    EXPECT_TRUE(Ok(inner->Release()));
    EXPECT_TRUE(Ok(Permit::TryAcquire(session)));
    // A request that cannot nest is refused, and does not wait for its own holder.
    Permit held = Must(Permit::Acquire(session));
    EXPECT_TRUE(Refused(Permit::Acquire(session, {.units = 2}), Reason::kNestedOverHeld));
    EXPECT_TRUE(Refused(Permit::Acquire(session, {.exclusive = true}), Reason::kNestedOverHeld));
  }
  daemon.ExpectAccountsBack();
}

TEST(CachedPermitsTest, ManyCachingProcessesRespectCapAndGetTurns) {
  TestDaemon daemon;
  const std::string counter = daemon.folder() + "/../counter";
  {
    const UniqueFd file(::open(counter.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_EQ(::ftruncate(file.get(), 4096), 0);
  }
  GiveToClients(counter);
  std::vector<std::unique_ptr<Actor>> actors;
  for (int i = 0; i < 8; ++i) {
    actors.push_back(std::make_unique<Actor>(daemon, ActorOptions{.open = false}));
    actors.back()->Do(i % 2 == 0 ? "open cache" : "open");
  }
  for (const auto& actor : actors) actor->SendLine(absl::StrCat("cycle 8 ", counter));
  for (const auto& actor : actors) {
    const absl::StatusOr<std::string> most = actor->Answer();
    ASSERT_TRUE(Ok(most));
    EXPECT_LE(std::stoi(*most), 2);
  }
  EXPECT_EQ(PoolOf(daemon).peak(), 2u);
  actors.clear();
  daemon.ExpectAccountsBack();
}

TEST(AsyncPermitsTest, AsyncAcquiresAreGrantedInTurnAndCancelled) {
  TestDaemon daemon({.environment = {kOnePermit}});
  Actor actor(daemon);
  actor.Do("async a");
  actor.Do("join a");
  actor.Do("async b");
  actor.Do("async c");
  ASSERT_TRUE(Eventually([&] { return PoolOf(daemon).waiters() == 2; }));
  actor.Do("async d wait_ms=200");
  actor.Do("cancel b");
  EXPECT_TRUE(absl::IsCancelled(actor.Ask("join b").status()));
  EXPECT_TRUE(Refused(actor.Ask("join d"), Reason::kWaitTimedOut));
  EXPECT_TRUE(Eventually([&] { return PoolOf(daemon).waiters() == 1; }));
  actor.Do("release a");
  actor.Do("join c");
  EXPECT_EQ(PoolOf(daemon).out(), 1u);
  // Other threads nest in it by its key.
  actor.Do(absl::StrCat("acquire e key=", actor.Do("share c")));
  actor.Do("release c");
  EXPECT_EQ(PoolOf(daemon).out(), 1u);
  actor.Do("release e");
  EXPECT_EQ(PoolOf(daemon).out(), 0u);
  // A request that waits when its session ends gets an error.
  actor.Do("acquire f");
  actor.Do("async g");
  ASSERT_TRUE(Eventually([&] { return PoolOf(daemon).waiters() == 1; }));
  actor.Do("end");
  EXPECT_FALSE(actor.Ask("join g").ok());
  actor.Quit();
  daemon.ExpectAccountsBack();
}

TEST(AsyncPermitsTest, WaitersNeedNoThreadEach) {
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
  daemon.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
