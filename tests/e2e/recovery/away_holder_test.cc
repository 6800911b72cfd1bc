// Processes that are stopped while the daemon restarts, and while their session or their permit ends. Once they
// continue, holders and waiters learn who ended it, also if they continue only to release it.

#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <berth/end_notice.h>
#include <berth/error.h>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/berth_command.h"
#include "tests/support/daemon/damaged_ledger.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/proc.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

class AwayHolderTest : public ::testing::Test {
 protected:
  static void Halt(pid_t pid) {
    ASSERT_EQ(::kill(pid, SIGSTOP), 0);
    ASSERT_TRUE(Eventually([&] { return StateOf(pid) == 'T'; }));
  }
  static void Halt(const Actor& actor) { Halt(actor.pid()); }
  void Restart() {
    daemon_.Stop();
    daemon_.StartAgain();
  }
  static std::string Said(EndReason reason) {
    return berth::Describe(EndNotice{.reason = reason, .uid = ::geteuid()});
  }
  // Whether an answer names who ended the session.
  static ::testing::AssertionResult Names(const absl::Status& status, EndReason reason) {
    if (!status.ok() && absl::StrContains(status.message(), Said(reason))) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << status << " lacks: " << Said(reason);
  }
  // Starts a shell that runs `script`, with stderr redirected to stdout. `berth` is $BERTH.
  Subprocess StartShell(const std::string& script) {
    return Subprocess::Start({.argv = {"/bin/sh", "-c", absl::StrCat("exec 2>&1; ", script)},
                              .environment = {absl::StrCat("BERTH=", ProgramPath("client/cli/berth")),
                                              absl::StrCat("BERTH_FOLDER=", daemon_.folder()), "BERTH_SESSION",
                                              "BERTH_PERMIT_KEEPER"}});
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

// An end of a permit whose process is stopped over a restart of the daemon.
struct End {
  const char* name;
  EndReason reason;
  std::function<void(TestDaemon&)> inflict;
};

std::vector<End> Ends() {
  const auto restart = [](TestDaemon& daemon) {
    daemon.Stop();
    daemon.StartAgain();
  };
  return {{"revoked", EndReason::kRevoked,
           [restart](TestDaemon& daemon) {
             restart(daemon);
             daemon.RevokePermits();
           }},
          {"another boot", EndReason::kNotResumed,
           [](TestDaemon& daemon) {
             daemon.Stop();
             daemon.ForgetBoot();
             daemon.StartAgain();
           }},
          // The reset discards the notices to processes that have not resumed their sessions.
          {"reset", EndReason::kNotResumed, [restart](TestDaemon& daemon) {
             restart(daemon);
             DamageLedger(daemon);
             EXPECT_EQ(BerthCommand(daemon.folder()).Run({"reset", "--yes"}), 0);
           }}};
}

TEST_F(AwayHolderTest, PermitEndedMeanwhileFailsItsRelease) {
  for (const End& end : Ends()) {
    SCOPED_TRACE(end.name);
    Actor holder(daemon_);
    holder.Do("acquire p");
    Halt(holder);
    end.inflict(daemon_);
    holder.process().Signal(SIGCONT);
    EXPECT_TRUE(Names(holder.Ask("release p").status(), end.reason));
    holder.Quit();
  }
}

TEST_F(AwayHolderTest, RunEndsWithItsCodeAfterItsCommand) {
  for (const End& end : Ends()) {
    for (const char* const mode : {"", "--until=tree"}) {
      SCOPED_TRACE(absl::StrCat(end.name, " ", mode));
      Subprocess run =
          StartShell(absl::StrCat("exec $BERTH run ", mode, " -- /bin/sh -c 'echo $$; read line; exit 7'"));
      pid_t command;
      ASSERT_TRUE(absl::SimpleAtoi(Must(run.ReadLine()), &command));
      Halt(run.pid());
      end.inflict(daemon_);
      run.WriteLine("go");
      ASSERT_TRUE(Eventually([&] { return !IsAlive(command); }));
      run.Signal(SIGCONT);
      const std::string said = run.ReadAll();
      EXPECT_EQ(run.Wait(), 79) << said;
      EXPECT_TRUE(absl::StrContains(said, Said(end.reason))) << said;
      EXPECT_TRUE(absl::StrContains(said, "the command ended with code 7")) << said;
    }
  }
}

TEST_F(AwayHolderTest, ReleaseOfShellPermitEndedMeanwhileFails) {
  for (const End& end : Ends()) {
    SCOPED_TRACE(end.name);
    Subprocess shell = StartShell(
        "eval \"$($BERTH acquire --shell)\"; echo ${BERTH_PERMIT_KEEPER%% *}; read line; "
        "eval \"$($BERTH release --shell)\"; echo $?");
    pid_t owner;
    ASSERT_TRUE(absl::SimpleAtoi(Must(shell.ReadLine()), &owner));
    Halt(owner);
    end.inflict(daemon_);
    shell.WriteLine("");
    ASSERT_TRUE(Eventually([&] { return IsPending(owner, SIGTERM); }));
    ASSERT_EQ(::kill(owner, SIGCONT), 0);
    EXPECT_EQ(Must(shell.ReadLine()), absl::StrCat("berth: the permit ended before its release: ", Said(end.reason)));
    EXPECT_EQ(Must(shell.ReadLine()), "79");
    shell.Wait();
  }
}

}  // namespace
}  // namespace berth::testing
