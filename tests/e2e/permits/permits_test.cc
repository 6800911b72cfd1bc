// Permits across processes: their count, their order, and nesting.

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <berth/error.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/admin.pb.h"
#include "berth/v1/permit.pb.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

v1::Pool PoolOf(TestDaemon& daemon, absl::string_view name = "gpu-tests") {
  const v1::ListPoolsResponse pools = Must(daemon.inspector().ListPools(), "pools");
  for (const v1::Pool& pool : pools.pools()) {
    if (pool.name() == name) return pool;
  }
  Fatal(absl::NotFoundError(name), "pools");
}

bool WaitersBecome(TestDaemon& daemon, uint64_t count) {
  return Eventually([&] { return PoolOf(daemon).waiters() == count; });
}

TEST(PermitsTest, TwentyProcessesNeverExceedCapOfTwo) {
  TestDaemon daemon;
  const std::string counter = daemon.folder() + "/../counter";
  {
    const UniqueFd file(::open(counter.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_EQ(::ftruncate(file.get(), 4096), 0);
  }
  GiveToClients(counter);
  constexpr int kProcesses = 20;
  constexpr int kCycles = 20;
  std::vector<std::unique_ptr<Actor>> actors;
  for (int i = 0; i < kProcesses; ++i) actors.push_back(std::make_unique<Actor>(daemon));
  for (const auto& actor : actors) actor->SendLine(absl::StrCat("cycle ", kCycles, " ", counter));
  uint64_t most = 0;
  for (const auto& actor : actors) {
    uint64_t seen = 0;
    const absl::StatusOr<std::string> answer = actor->Answer();
    ASSERT_TRUE(Ok(answer));
    ASSERT_TRUE(absl::SimpleAtoi(*answer, &seen));
    most = std::max(most, seen);
  }
  // Work was conserved: both the holders and the daemon saw two at once.
  EXPECT_EQ(most, 2u);
  const v1::Pool pool = PoolOf(daemon);
  EXPECT_EQ(pool.peak(), 2u);
  EXPECT_EQ(pool.granted_total(), uint64_t{kProcesses * kCycles});
  actors.clear();
  daemon.ExpectAccountsBack();
}

TEST(PermitsTest, ProcessesAreServedInRequestOrder) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  Actor holder(daemon);
  holder.Do("acquire p");
  constexpr int kWaiters = 6;
  std::vector<std::unique_ptr<Actor>> waiters;
  for (int i = 0; i < kWaiters; ++i) {
    waiters.push_back(std::make_unique<Actor>(daemon));
    waiters.back()->SendLine("acquire p");
    ASSERT_TRUE(WaitersBecome(daemon, static_cast<uint64_t>(i + 1)));
  }
  holder.Do("release p");
  for (int i = 0; i < kWaiters; ++i) {
    EXPECT_TRUE(Ok(waiters[i]->Answer())) << i;
    const v1::ListPermitsResponse now = Must(daemon.inspector().ListPermits());
    ASSERT_EQ(now.permits_size(), 1);
    EXPECT_EQ(now.permits(0).process().pid(), waiters[i]->pid());
    EXPECT_EQ(now.waiters_size(), kWaiters - 1 - i);
    EXPECT_TRUE(Ok(waiters[i]->Ask("release p")));
  }
  waiters.clear();
  holder.Quit();
  daemon.ExpectAccountsBack();
}

TEST(PermitsTest, HigherPriorityIsServedFirstUntilAgeing) {
  TestDaemon daemon({.config = "[pools.gpu-tests]\ncap = 1\nageing = \"5s\"\n"});
  Actor holder(daemon);
  holder.Do("acquire p");
  std::vector<std::unique_ptr<Actor>> waiters;
  const auto wait = [&](const std::string& options) {
    waiters.push_back(std::make_unique<Actor>(daemon));
    waiters.back()->SendLine("acquire p " + options);
    return WaitersBecome(daemon, waiters.size());
  };
  ASSERT_TRUE(wait("priority=-10 label=least"));
  const absl::Time least_since = absl::Now();
  ASSERT_TRUE(Eventually([&] { return absl::Now() - least_since > absl::Seconds(5); }));
  ASSERT_TRUE(wait("label=normal"));
  ASSERT_TRUE(wait("priority=10 label=most"));
  std::vector<std::string> order;
  const v1::ListPermitsResponse queue = Must(daemon.inspector().ListPermits());
  for (const v1::Waiter& waiter : queue.waiters()) order.push_back(waiter.label());
  EXPECT_EQ(order, (std::vector<std::string>{"least", "most", "normal"}));
  holder.Do("release p");
  for (const int next : {0, 2, 1}) {
    EXPECT_TRUE(Ok(waiters[next]->Answer())) << next;
    EXPECT_EQ(PoolOf(daemon).out(), 1u);
    waiters[next]->Do("release p");
  }
  EXPECT_TRUE(Refused(holder.Ask("acquire q priority=11"), Reason::kInvalidField, {{"field", "priority"}}));
  waiters.clear();
  holder.Quit();
  daemon.ExpectAccountsBack();
}

TEST(PermitsTest, ExclusivePermitIsAlone) {
  TestDaemon daemon;
  Actor shared(daemon);
  Actor alone(daemon);
  Actor other(daemon);
  shared.Do("acquire p");
  EXPECT_TRUE(Refused(alone.Ask("acquire p exclusive try"), Reason::kNoPermit));
  alone.SendLine("acquire p exclusive");
  ASSERT_TRUE(WaitersBecome(daemon, 1));
  shared.Do("release p");
  EXPECT_TRUE(Ok(alone.Answer()));
  EXPECT_TRUE(PoolOf(daemon).exclusive());
  EXPECT_TRUE(Refused(other.Ask("acquire p try"), Reason::kNoPermit));
  alone.Kill();
  EXPECT_TRUE(Ok(other.Ask("acquire p")));
  // A shared permit cannot become exclusive from inside.
  EXPECT_TRUE(Refused(other.Ask("acquire q exclusive"), Reason::kNestedOverHeld));
  shared.Quit();
  other.Quit();
  daemon.ExpectAccountsBack();
}

// Sets after how many seconds a permit is overdue, and revoked; 0 for never.
void SetHoldTimes(TestDaemon& daemon, int64_t warning, int64_t limit) {
  v1::SetPoolRequest change;
  change.mutable_hold_warning()->set_seconds(warning);
  change.mutable_hold_limit()->set_seconds(limit);
  EXPECT_TRUE(Ok(daemon.inspector().SetPool(change)));
}

// How often each happens is tested with a clock of the test's own (core_permit_test.cc).
TEST(PermitsTest, OverduePermitGoesToNextWaiter) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  SetHoldTimes(daemon, 1, 0);
  Actor stopped(daemon);
  stopped.Do("acquire p");
  stopped.process().Signal(SIGSTOP);
  Actor waiter(daemon);
  waiter.SendLine("acquire p");
  EXPECT_TRUE(Eventually([&] { return PoolOf(daemon).overdue() == 1; }));
  EXPECT_EQ(PoolOf(daemon).revoked_total(), 0u);
  SetHoldTimes(daemon, 1, 2);
  EXPECT_TRUE(Ok(waiter.Answer()));
  EXPECT_GE(PoolOf(daemon).revoked_total(), 1u);
  stopped.Kill();
  waiter.Quit();
  daemon.ExpectAccountsBack();
}

TEST(PermitsTest, OverdueHolderIsNotifiedRevokedAndAcquiresAnew) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  Actor holder(daemon);
  holder.Do("acquire p");
  EXPECT_EQ(holder.Do("notices p"), "");
  SetHoldTimes(daemon, 1, 0);
  EXPECT_TRUE(Eventually([&] { return holder.Do("notices p") == "overdue"; }));
  SetHoldTimes(daemon, 1, 2);
  EXPECT_TRUE(Eventually([&] { return holder.Do("notices p") == "overdue revoked"; }));
  SetHoldTimes(daemon, 0, 0);
  EXPECT_EQ(PoolOf(daemon).out(), 0u);
  // The thread does not nest in a revoked permit: it gets a new one.
  holder.Do("acquire q");
  EXPECT_EQ(PoolOf(daemon).granted_total(), 2u);
  EXPECT_EQ(holder.Do("notices q"), "");
  EXPECT_TRUE(absl::IsAborted(holder.Ask("release p").status())) << "it had ended";
  EXPECT_EQ(PoolOf(daemon).out(), 1u);
}

TEST(PermitsTest, ConcurrentDeclarationsNeverShareBytes) {
  TestDaemon daemon({.flags = {"--host-devices=2", "--host-bytes=1GiB"},
                     .environment = {"BERTH_GPU_TEST_CONCURRENCY=100"}});
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  const std::string want = absl::StrCat("acquire p device=any declared=", 400 * kMiB);
  std::vector<std::unique_ptr<Actor>> actors;
  for (int i = 0; i < 12; ++i) actors.push_back(std::make_unique<Actor>(daemon));
  // All at once: two fit on each device.
  for (const auto& actor : actors) actor->SendLine(want);
  std::map<std::string, uint64_t> on;
  for (uint64_t done = 0; done < actors.size();) {
    ASSERT_TRUE(Eventually([&] {
      const v1::Pool pool = PoolOf(daemon);
      return pool.holders() == std::min<uint64_t>(4, actors.size() - done) &&
             pool.waiters() == actors.size() - done - pool.holders();
    }));
    const v1::ListPermitsResponse now = Must(daemon.inspector().ListPermits());
    std::map<std::string, uint64_t> declared;
    std::vector<int> pids;
    for (const v1::Permit& permit : now.permits()) {
      declared[permit.device().uuid()] += permit.declared_bytes();
      pids.push_back(permit.process().pid());
    }
    for (const auto& [uuid, bytes] : declared) EXPECT_LE(bytes, 1024 * kMiB) << uuid;
    for (const auto& actor : actors) {
      if (std::find(pids.begin(), pids.end(), actor->pid()) == pids.end()) continue;
      ++on[Must(actor->Answer())];
      // Some actors die, the others release.
      if (++done % 3 == 0) {
        actor->Kill();
      } else {
        actor->Do("release p");
      }
    }
  }
  EXPECT_EQ(on.size(), 2u);
  EXPECT_GT(on["HOST-0"], 3u);
  EXPECT_GT(on["HOST-1"], 3u);
  EXPECT_EQ(PoolOf(daemon).peak(), 4u);
  actors.clear();
  daemon.ExpectAccountsBack();
}

TEST(PermitsTest, ImpossibleConstraintIsRejectedAndChangesNothing) {
  TestDaemon daemon({.flags = {"--host-devices=2", "--host-bytes=1GiB"}});
  Actor actor(daemon);
  // A request that may wait uses another connection; acquire once, so that it exists.
  actor.Do("acquire p");
  actor.Do("release p");
  const Accounts before = daemon.TakeAccounts();
  EXPECT_TRUE(Refused(actor.Ask("acquire p device=GPU-7"), Reason::kNotFound, {{"id", "GPU-7"}}));
  EXPECT_TRUE(Refused(actor.Ask("acquire p device=any declared=9999999999"), Reason::kOverCap,
                      {{"asked", "9999999999"}, {"cap", "1073741824"}}));
  EXPECT_TRUE(Refused(actor.Ask("acquire p device=HOST-1 min_free=1073741825 try"), Reason::kOverCap));
  EXPECT_TRUE(absl::IsInvalidArgument(actor.Ask("acquire p declared=1").status()));
  EXPECT_TRUE(daemon.AccountsReturnTo(before));
  EXPECT_EQ(Must(actor.Ask("acquire p device=HOST-1")), "HOST-1");
  EXPECT_TRUE(Refused(actor.Ask("acquire q device=HOST-0"), Reason::kNestedOverHeld, {{"held", "HOST-1"}}));
  EXPECT_EQ(Must(actor.Ask("acquire q device=any")), "HOST-1");
  actor.Quit();
  daemon.ExpectAccountsBack();
}

TEST(PermitsTest, FreedBlockServesWaiterForDeclaredBytes) {
  TestDaemon daemon({.flags = {"--host-bytes=64MiB"}});
  Actor owner(daemon);
  owner.Do(absl::StrCat("allocate b ", 20 << 20));
  Actor waiter(daemon);
  const std::string want = absl::StrCat("acquire p device=any declared=", 50 << 20);
  EXPECT_TRUE(Refused(waiter.Ask(want + " try"), Reason::kNoPermit));
  waiter.SendLine(want);
  ASSERT_TRUE(WaitersBecome(daemon, 1));
  // A waiter for bytes that no permit holds blocks no other waiter.
  Actor other(daemon);
  EXPECT_TRUE(Ok(other.Ask("acquire p try")));
  const v1::ListPermitsResponse waiting = Must(daemon.inspector().ListPermits());
  ASSERT_EQ(waiting.waiters_size(), 1);
  const uint64_t number = waiting.waiters(0).number();
  const v1::WaitExplanation wait = Must(daemon.inspector().ExplainWait(number));
  EXPECT_EQ(wait.cause(), v1::WaitExplanation::DEVICE);
  const std::string lacking =
      absl::StrCat("device 0 is short of bytes: ", 44 << 20, " free of ", 50 << 20);
  EXPECT_EQ(wait.lacking(), lacking);
  Subprocess command = Subprocess::Start({.argv = {ProgramPath("client/cli/berth"),
                                                   absl::StrCat("--folder=", daemon.folder()), "explain",
                                                   absl::StrCat(number)},
                                          .environment = {"BERTH_SESSION"}});
  const std::string text = command.ReadAll();
  EXPECT_EQ(command.Wait(), 0);
  EXPECT_TRUE(absl::StrContains(text, "on device any with 50 MiB declared, priority 0")) << text;
  EXPECT_TRUE(absl::StrContains(text, absl::StrCat("\nbecause: ", lacking, "\n"))) << text;
  owner.Do("free b");
  EXPECT_TRUE(Ok(waiter.Answer()));
  owner.Quit();
  waiter.Quit();
  other.Quit();
  daemon.ExpectAccountsBack();
}

TEST(PermitsTest, ExpiredWaitLeavesQueue) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  Actor holder(daemon);
  holder.Do("acquire p");
  Actor waiter(daemon);
  EXPECT_TRUE(
      Refused(waiter.Ask("acquire p wait_ms=50"), Reason::kWaitTimedOut,
              {{"pool", "gpu-tests"}, {"asked", "1"}, {"out", "1"}, {"cap", "1"}, {"position", "1"}}));
  EXPECT_EQ(PoolOf(daemon).waiters(), 0u);
  EXPECT_EQ(PoolOf(daemon).out(), 1u);
  holder.Do("release p");
  EXPECT_TRUE(Ok(waiter.Ask("acquire p wait_ms=50")));
  holder.Quit();
  waiter.Quit();
  daemon.ExpectAccountsBack();
}

TEST(PermitsTest, TryAcquireIsRejectedAtOnceWithNamedValues) {
  TestDaemon daemon;
  Actor holder(daemon);
  holder.Do("acquire a key=a");
  holder.Do("acquire b key=b");
  Actor other(daemon);
  EXPECT_TRUE(Refused(other.Ask("acquire p try"), Reason::kNoPermit,
                      {{"pool", "gpu-tests"}, {"asked", "1"}, {"out", "2"}, {"cap", "2"}}));
  EXPECT_TRUE(Refused(other.Ask("acquire p units=3"), Reason::kOverCap,
                      {{"pool", "gpu-tests"}, {"asked", "3"}, {"cap", "2"}}));
  EXPECT_TRUE(Refused(other.Ask("acquire p pool=nobodys"), Reason::kNotFound, {{"id", "nobodys"}}));
  EXPECT_EQ(PoolOf(daemon).waiters(), 0u);
  holder.Quit();
  other.Quit();
  daemon.ExpectAccountsBack();
}

TEST(PermitsTest, CancelledWaitLeavesQueue) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  Actor holder(daemon);
  holder.Do("acquire p");
  Actor waiter(daemon);
  waiter.Do("begin w");
  ASSERT_TRUE(WaitersBecome(daemon, 1));
  waiter.Do("cancel w");
  EXPECT_TRUE(absl::IsCancelled(waiter.Ask("join w").status()));
  EXPECT_TRUE(WaitersBecome(daemon, 0));
  holder.Do("release p");
  EXPECT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.permits == 0; }));
  holder.Quit();
  waiter.Quit();
  daemon.ExpectAccountsBack();
}

TEST(PermitsTest, KilledWaiterLeavesQueue) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  Actor holder(daemon);
  holder.Do("acquire p");
  Actor first(daemon);
  first.SendLine("acquire p");
  ASSERT_TRUE(WaitersBecome(daemon, 1));
  Actor second(daemon);
  second.SendLine("acquire p");
  ASSERT_TRUE(WaitersBecome(daemon, 2));
  first.Kill();
  ASSERT_TRUE(WaitersBecome(daemon, 1));
  holder.Do("release p");
  EXPECT_TRUE(Ok(second.Answer()));
  holder.Quit();
  second.Quit();
  daemon.ExpectAccountsBack();
}

TEST(PermitsTest, KilledHoldersPermitGoesToNextWaiter) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  Actor holder(daemon);
  holder.Do("acquire p");
  Actor waiter(daemon);
  waiter.SendLine("acquire p");
  ASSERT_TRUE(WaitersBecome(daemon, 1));
  holder.Kill();
  EXPECT_TRUE(Ok(waiter.Answer()));
  waiter.Quit();
  daemon.ExpectAccountsBack();
}

TEST(PermitsTest, ThreadNestsAndLastReleaseReturnsPermit) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  Actor actor(daemon);
  actor.Do("acquire outer");
  actor.Do("acquire inner");
  actor.Do("acquire innermost");
  EXPECT_EQ(PoolOf(daemon).granted_total(), 1u);
  actor.Do("release outer");
  actor.Do("release innermost");
  EXPECT_EQ(PoolOf(daemon).out(), 1u);
  actor.Do("release inner");
  EXPECT_EQ(PoolOf(daemon).out(), 0u);
  actor.Quit();
  daemon.ExpectAccountsBack();
}

TEST(PermitsTest, ZeroUnitsAreRejectedAlsoWhenNested) {
  TestDaemon daemon;
  Actor actor(daemon);
  EXPECT_TRUE(Refused(actor.Ask("acquire p units=0"), Reason::kInvalidField, {{"field", "units"}, {"value", "0"}}));
  actor.Do("acquire outer");
  EXPECT_TRUE(Refused(actor.Ask("acquire inner units=0"), Reason::kInvalidField, {{"field", "units"}}));
  actor.Do("release outer");
  EXPECT_EQ(PoolOf(daemon).granted_total(), 1u);
  actor.Quit();
  daemon.ExpectAccountsBack();
}

TEST(PermitsTest, GuardDroppedOnOtherThreadReturnsOwnPermit) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  Actor actor(daemon);
  actor.Do("acquire outer");
  actor.Do("acquire inner");
  actor.Do("drop-elsewhere outer");
  EXPECT_EQ(PoolOf(daemon).out(), 1u);
  actor.Do("drop-elsewhere inner");
  EXPECT_EQ(PoolOf(daemon).out(), 0u);
  // The acquiring thread holds nothing any more: its next acquire gets a new permit.
  actor.Do("acquire again");
  EXPECT_EQ(PoolOf(daemon).granted_total(), 2u);
  actor.Quit();
  daemon.ExpectAccountsBack();
}

TEST(PermitsTest, ThreadsSharePermitByKey) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  Actor actor(daemon);
  actor.Do("acquire outer");
  const std::string key = actor.Do("share outer");
  actor.Do(absl::StrCat("begin elsewhere key=", key));
  EXPECT_TRUE(Ok(actor.Ask("join elsewhere")));
  actor.Do("release outer");
  EXPECT_EQ(PoolOf(daemon).out(), 1u);
  actor.Do("release elsewhere");
  EXPECT_EQ(PoolOf(daemon).out(), 0u);
  actor.Quit();
  daemon.ExpectAccountsBack();
}

TEST(PermitsTest, SessionProcessesNestInAdoptablePermit) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  Actor parent(daemon);
  parent.Do("acquire job key=job adoptable");
  parent.Do("child");
  EXPECT_TRUE(Ok(parent.Ask("in-child acquire p try")));
  EXPECT_EQ(PoolOf(daemon).out(), 1u);
  EXPECT_TRUE(Refused(parent.Ask("in-child acquire q try independent key=q"), Reason::kNoPermit));
  parent.Do("release job");
  // The child's nesting holds the permit.
  EXPECT_EQ(PoolOf(daemon).out(), 1u);
  parent.Do("in-child release p");
  EXPECT_EQ(PoolOf(daemon).out(), 0u);
  parent.Quit();
  daemon.ExpectAccountsBack();
}

struct CapCase {
  const char* name;
  std::vector<std::string> environment;
  uint64_t cap;
};

TEST(PermitsTest, DaemonEnvironmentSetsCap) {
  const std::vector<CapCase> cases = {
      {"unset", {}, 2},
      {"empty", {"BERTH_GPU_TEST_CONCURRENCY="}, 2},
      {"trimmed", {"BERTH_GPU_TEST_CONCURRENCY= 3 "}, 3},
      {"zero", {"BERTH_GPU_TEST_CONCURRENCY=0"}, 1},
      {"negative", {"BERTH_GPU_TEST_CONCURRENCY=-1"}, 2},
      {"no number", {"BERTH_GPU_TEST_CONCURRENCY=x"}, 2},
      {"alias", {"REALIZAR_GPU_TEST_CONCURRENCY=5"}, 5},
      {"both", {"BERTH_GPU_TEST_CONCURRENCY=4", "REALIZAR_GPU_TEST_CONCURRENCY=5"}, 4},
  };
  for (const CapCase& one : cases) {
    TestDaemon daemon({.environment = one.environment});
    EXPECT_EQ(PoolOf(daemon).cap(), one.cap) << one.name;
  }
}

TEST(PermitsTest, ClientEnvironmentOnlyLowersCap) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=2"}});
  Actor high(daemon, {.environment = {"BERTH_GPU_TEST_CONCURRENCY=9"}});
  Actor low(daemon, {.environment = {"REALIZAR_GPU_TEST_CONCURRENCY=1"}});
  high.Do("acquire a key=a");
  EXPECT_TRUE(Refused(low.Ask("acquire p try"), Reason::kNoPermit));
  EXPECT_TRUE(Ok(high.Ask("acquire b key=b try")));
  EXPECT_TRUE(Refused(high.Ask("acquire c key=c try"), Reason::kNoPermit));
  high.Do("release a");
  high.Do("release b");
  EXPECT_TRUE(Ok(low.Ask("acquire p try")));
  high.Quit();
  low.Quit();
  daemon.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
