// Unsent releases of a client that leaves its session: nothing stays leased while the process lives.

#include <signal.h>
#include <sys/types.h>

#include <string>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

// For clients that wait for the end of a give-back that no daemon answers.
constexpr char kOwnBounds[] = "BERTH_TEST_PATIENCE=1";

bool NothingIsOut(const Accounts& accounts) {
  return accounts.permits == 0 && accounts.waiters == 0 && accounts.blocks == 0 && accounts.imports == 0 &&
         accounts.live + accounts.retired + accounts.quarantined == 0;
}

TEST(DebtsTest, PendingReturnsAreDeliveredAfterSessionClose) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  Actor actor(daemon, {.environment = {kOwnBounds}});
  actor.Do("acquire p");
  actor.Do("allocate b 4096");
  actor.Do("map b");
  const pid_t broker = daemon.broker();
  ASSERT_EQ(::kill(broker, SIGSTOP), 0);
  // No broker receives the release and the free, and leaving does not wait for them.
  actor.Do("close");
  ASSERT_EQ(::kill(broker, SIGCONT), 0);
  EXPECT_TRUE(daemon.AccountsBecome(NothingIsOut)) << Describe(daemon.TakeAccounts());
  // The session ends only now. The pending releases cause this, not the process's death.
  EXPECT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.sessions == 1; }));
  EXPECT_EQ(actor.Do("pid"), absl::StrCat(actor.pid()));
  actor.Quit();
  daemon.ExpectAccountsBack();
}

TEST(DebtsTest, LeavingProcessLeavesNothingInLivingSession) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  Actor parent(daemon, {.environment = {kOwnBounds}});
  parent.Do("child");
  parent.Do("in-child acquire p");
  const pid_t broker = daemon.broker();
  ASSERT_EQ(::kill(broker, SIGSTOP), 0);
  parent.Do("in-child close");
  ASSERT_EQ(::kill(broker, SIGCONT), 0);
  EXPECT_TRUE(daemon.AccountsBecome(NothingIsOut)) << Describe(daemon.TakeAccounts());
  // The session is as usable as before.
  EXPECT_TRUE(Ok(parent.Ask("acquire p try")));
  parent.Quit();
  daemon.ExpectAccountsBack();
}

TEST(DebtsTest, UnansweredWaitLeavesNoPermit) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  Actor holder(daemon);
  holder.Do("acquire p");
  Actor waiter(daemon, {.environment = {kOwnBounds}});
  waiter.Do("begin w");
  ASSERT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1; }));
  const pid_t broker = daemon.broker();
  ASSERT_EQ(::kill(broker, SIGSTOP), 0);
  waiter.Do("cancel w");
  EXPECT_EQ(waiter.Ask("join w").status().code(), absl::StatusCode::kCancelled);
  waiter.Do("close");
  holder.Kill();
  // The daemon sees the holder's death and the cancel together, in either order.
  ASSERT_EQ(::kill(broker, SIGCONT), 0);
  EXPECT_TRUE(daemon.AccountsBecome(NothingIsOut)) << Describe(daemon.TakeAccounts());
  EXPECT_EQ(waiter.Do("pid"), absl::StrCat(waiter.pid()));
  waiter.Quit();
  daemon.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
