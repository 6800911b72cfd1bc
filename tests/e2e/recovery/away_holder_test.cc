// Processes that are stopped while the daemon restarts, and while an operator ends their session or resets the daemon.
// Once they continue, holders and waiters learn who ended their session.

#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include <berth/end_notice.h>
#include <berth/error.h>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/berth_command.h"
#include "tests/support/daemon/damaged_ledger.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/proc.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

class AwayHolderTest : public ::testing::Test {
 protected:
  void Halt(Actor& actor) {
    actor.process().Signal(SIGSTOP);
    ASSERT_TRUE(Eventually([&] { return StateOf(actor.pid()) == 'T'; }));
  }
  void Restart() {
    daemon_.Stop();
    daemon_.StartAgain();
  }
  // Whether an answer names who ended the session.
  static ::testing::AssertionResult Names(const absl::Status& status, EndReason reason) {
    const std::string said = berth::Describe(EndNotice{.reason = reason, .uid = ::geteuid()});
    if (!status.ok() && absl::StrContains(status.message(), said)) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << status << " lacks: " << said;
  }

  TestDaemon daemon_{{.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}}};
  const BerthCommand berth_{daemon_.folder()};
};

TEST_F(AwayHolderTest, StoppedProcessesLearnWhoEndedTheirSessions) {
  for (const bool restarts_again : {false, true}) {
    SCOPED_TRACE(restarts_again);
    Actor holder(daemon_), waiter(daemon_);
    holder.Do("acquire p");
    waiter.Do("begin q");
    ASSERT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1; }));
    const uint64_t sessions[] = {holder.session().value(), waiter.session().value()};
    Halt(holder);
    Halt(waiter);
    Restart();
    for (const uint64_t session : sessions) EXPECT_EQ(berth_.Run({"sessions", "end", absl::StrCat(session)}), 0);
    if (restarts_again) Restart();
    holder.process().Signal(SIGCONT);
    waiter.process().Signal(SIGCONT);
    EXPECT_TRUE(Names(waiter.Ask("join q").status(), EndReason::kSessionEnded));
    EXPECT_TRUE(Names(holder.Ask("release p").status(), EndReason::kSessionEnded));
    EXPECT_TRUE(Names(holder.Ask("acquire r").status(), EndReason::kSessionEnded));
    holder.Quit();
    waiter.Quit();
  }
  daemon_.ExpectAccountsBack();
}

TEST_F(AwayHolderTest, ConnectedWaiterLearnsWhoEndedItsSession) {
  Actor holder(daemon_), waiter(daemon_);
  holder.Do("acquire p");
  waiter.Do("begin q");
  ASSERT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1; }));
  EXPECT_EQ(berth_.Run({"sessions", "end", absl::StrCat(waiter.session().value())}), 0);
  EXPECT_TRUE(Names(waiter.Ask("join q").status(), EndReason::kSessionEnded));
  EXPECT_TRUE(Ok(holder.Ask("release p")));
  holder.Quit();
  waiter.Quit();
  daemon_.ExpectAccountsBack();
}

TEST_F(AwayHolderTest, WaitersLearnOfReset) {
  Actor holder(daemon_), waiter(daemon_), stopped(daemon_);
  holder.Do("acquire p");
  waiter.Do("begin q");
  stopped.Do("begin q");
  ASSERT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 2; }));
  Halt(stopped);
  DamageLedger(daemon_);
  EXPECT_EQ(berth_.Run({"reset", "--yes"}), 0);
  EXPECT_TRUE(Names(waiter.Ask("join q").status(), EndReason::kReset));
  stopped.process().Signal(SIGCONT);
  EXPECT_TRUE(Names(stopped.Ask("join q").status(), EndReason::kReset));
  EXPECT_TRUE(Names(holder.Ask("release p").status(), EndReason::kReset));
  for (Actor* const actor : {&holder, &waiter, &stopped}) actor->Quit();
}

TEST_F(AwayHolderTest, WaiterLearnsOfStopThatEndsLeases) {
  Actor holder(daemon_), waiter(daemon_);
  holder.Do("acquire p");
  waiter.Do("begin q");
  ASSERT_TRUE(daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1; }));
  EXPECT_EQ(berth_.Run({"stop", "--end-leases", "--yes"}), 0);
  EXPECT_TRUE(Names(waiter.Ask("join q").status(), EndReason::kStopped));
  EXPECT_TRUE(Names(holder.Ask("release p").status(), EndReason::kStopped));
  daemon_.Abandon();
}

}  // namespace
}  // namespace berth::testing
