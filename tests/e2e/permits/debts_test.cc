// Unsent releases of a client that leaves its session: nothing stays leased while the process lives. Sessions that end
// on a thread of gRPC.

#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <memory>
#include <string>

#include <berth/error.h>
#include <berth/permit.h>
#include <berth/session.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/notification.h"
#include "common/steady_clock.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/environment.h"
#include "tests/support/subprocess.h"
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
  const pid_t broker = daemon.StopBroker();
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

// Without an answer, each way to end returns permits and ends a session in one wait of 2 s. The gate does not judge
// times.
TEST(DebtsTest, EndsWithoutAnswerTakeOneWait) {
  if (!Soaks()) GTEST_SKIP() << "measures times";
  const std::string run = " -- /bin/sh -c 'echo in; read line'; echo $?";
  for (const std::string& script :
       {"$BERTH run" + run, "$BERTH run --gpus 2" + run, "$BERTH run --until tree" + run,
        std::string("eval \"$($BERTH acquire --shell)\"; echo in; read line; $BERTH release; echo $?")}) {
    for (const bool hangs : {false, true}) {
      SCOPED_TRACE(absl::StrCat(script, hangs ? ", the broker hangs" : ", no daemon"));
      TestDaemon daemon({.flags = {"--host-devices=2"}, .environment = {"BERTH_GPU_TEST_CONCURRENCY=2"}});
      Subprocess shell = Subprocess::Start({.argv = {"/bin/sh", "-c", script},
                                            .environment = {absl::StrCat("BERTH=", ProgramPath("client/cli/berth")),
                                                            absl::StrCat("BERTH_FOLDER=", daemon.folder()), kOwnBounds,
                                                            "BERTH_SESSION", "BERTH_PERMIT_KEEPER", "BERTH_DEVICE"}});
      ASSERT_EQ(Must(shell.ReadLine()), "in");
      const pid_t broker = hangs ? daemon.StopBroker() : 0;
      if (!hangs) daemon.Stop();
      const absl::Time begun = SteadyNow();
      shell.WriteLine("");
      EXPECT_EQ(Must(shell.ReadLine()), "0");
      EXPECT_LT(SteadyNow() - begun, absl::Seconds(3));
      shell.Wait();
      if (hangs) {
        ASSERT_EQ(::kill(broker, SIGCONT), 0);
      } else {
        daemon.StartAgain();
      }
      daemon.ExpectAccountsBack();
    }
  }
}

// Ends sessions of this process by the result of an acquire: their last reference is released on a thread of gRPC.
[[noreturn]] void EndSessionsInCallbacks() {
  TestDaemon daemon;
  for (int i = 0; i < 8; ++i) {
    for (const bool by_callback : {false, true}) {
      std::shared_ptr<Session> session = Must(Session::Open({.folder = daemon.folder(), .always_new = true}));
      Notification granted;
      Permit::AcquireAsync(session, {}, [&, own = by_callback ? session : nullptr](absl::StatusOr<Permit> permit) {
        Must(permit.status());
        granted.Notify();
      });
      session.reset();
      granted.WaitForNotification();
    }
  }
  daemon.ExpectAccountsBack();
  ::_exit(::testing::Test::HasFailure() ? 1 : 0);
}

TEST(DebtsDeathTest, SessionEndsOnThreadOfGrpc) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  // In a process with no other channel of gRPC, whose threads then end with the session.
  EXPECT_EXIT(EndSessionsInCallbacks(), ::testing::ExitedWithCode(0), "");
}

TEST(DebtsTest, LeavingProcessLeavesNothingInLivingSession) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  Actor parent(daemon, {.environment = {kOwnBounds}});
  parent.Do("child");
  parent.Do("in-child acquire p");
  const pid_t broker = daemon.StopBroker();
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
  const pid_t broker = daemon.StopBroker();
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
