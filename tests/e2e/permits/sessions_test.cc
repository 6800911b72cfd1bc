// Sessions across processes: their members, and when they end.

#include <signal.h>
#include <sys/types.h>

#include <string>

#include <berth/error.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/resources.pb.h"
#include "berth/v1/session.pb.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/proc.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

TEST(SessionsTest, ForkedChildWithoutExecIsRejected) {
  TestDaemon daemon;
  Actor actor(daemon);
  actor.Do("acquire p");
  const std::string said = actor.Do("fork-try");
  EXPECT_TRUE(absl::StartsWith(said, "FAILED_PRECONDITION")) << said;
  EXPECT_FALSE(absl::StrContains(said, "OK")) << said;
  // The parent's state is unchanged.
  EXPECT_TRUE(Ok(actor.Ask("release p")));
  EXPECT_TRUE(Ok(actor.Ask("acquire p")));
  actor.Quit();
  daemon.ExpectAccountsBack();
}

TEST(SessionsTest, ExecedChildJoinsInheritedSession) {
  TestDaemon daemon;
  Actor parent(daemon);
  parent.Do("child");
  EXPECT_EQ(parent.Do("in-child session"), parent.Do("session"));
  const v1::ListSessionsResponse sessions = Must(daemon.inspector().ListSessions());
  ASSERT_EQ(sessions.sessions_size(), 2);
  EXPECT_EQ(sessions.sessions(1).processes_size(), 2);
  // All processes of the session can use its blocks.
  const std::string handle = parent.Do("allocate b 4096");
  EXPECT_TRUE(Ok(parent.Ask(absl::StrCat("in-child import b ", handle))));
  parent.Quit();
  daemon.ExpectAccountsBack();
}

TEST(SessionsTest, InheritedSessionOutlivesItsOpener) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  Actor parent(daemon);
  parent.Do("acquire p");
  parent.Do("child");
  const pid_t child = static_cast<pid_t>(std::stoi(parent.Do("in-child pid")));
  // While stopped, the child cannot see the end of its input; it ends only once resumed.
  ASSERT_EQ(::kill(child, SIGSTOP), 0);
  parent.Kill();
  Actor other(daemon);
  other.SendLine("acquire p");
  ASSERT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1; }));
  EXPECT_EQ(daemon.TakeAccounts().permits, 1u);
  ASSERT_EQ(::kill(child, SIGCONT), 0);
  EXPECT_TRUE(Ok(other.Answer()));
  EXPECT_TRUE(Eventually([&] { return !IsAlive(child); }));
  other.Quit();
  daemon.ExpectAccountsBack();
}

TEST(SessionsTest, HolderWithoutSocketsRetainsPermitUntilItEnds) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  Actor holder(daemon);
  holder.Do("acquire p");
  holder.Do("begin w key=other");
  ASSERT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1; }));
  holder.SendLine("closefds");
  // The waiter leaves and the session ends, but the permit is granted to no other client: the process lives and may use
  // the GPU.
  ASSERT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 0; }));
  Actor other(daemon);
  EXPECT_TRUE(Refused(other.Ask("acquire p try"), Reason::kNoPermit));
  const v1::ListSessionsResponse sessions = Must(daemon.inspector().ListSessions());
  EXPECT_EQ(sessions.sessions(1).state(), v1::Session::ENDING);
  holder.Kill();
  EXPECT_TRUE(Ok(other.Ask("acquire p")));
  other.Quit();
  daemon.ExpectAccountsBack();
}

TEST(SessionsTest, HolderAfterExecRetainsPermitUntilItEnds) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  Actor holder(daemon);
  holder.Do("acquire p");
  EXPECT_EQ(holder.Do("exec-idle"), "idle");
  Actor other(daemon);
  EXPECT_TRUE(Refused(other.Ask("acquire p try"), Reason::kNoPermit));
  other.SendLine("acquire p");
  ASSERT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1; }));
  EXPECT_EQ(daemon.TakeAccounts().permits, 1u);
  holder.process().CloseInput();
  EXPECT_EQ(holder.process().Wait(), 0);
  EXPECT_TRUE(Ok(other.Answer()));
  other.Quit();
  daemon.ExpectAccountsBack();
}

TEST(SessionsTest, EndedSessionGrantsNothingAndLeasesStay) {
  TestDaemon daemon;
  Actor actor(daemon);
  actor.Do("acquire p");
  actor.Do("allocate b 4096");
  EXPECT_TRUE(Ok(actor.Ask("end")));
  EXPECT_TRUE(Refused(actor.Ask("acquire q key=q try"), Reason::kSessionEnded));
  EXPECT_TRUE(Refused(actor.Ask("allocate c 4096"), Reason::kSessionEnded));
  // The process lives and may still use both.
  const Accounts accounts = daemon.TakeAccounts();
  EXPECT_EQ(accounts.permits, 1u);
  EXPECT_EQ(accounts.imports, 1u);
  actor.Quit();
  daemon.ExpectAccountsBack();
}

TEST(SessionsTest, OperatorEndsAnySession) {
  TestDaemon daemon;
  Actor actor(daemon);
  EXPECT_TRUE(Ok(daemon.inspector().EndSession(actor.session())));
  EXPECT_TRUE(Refused(actor.Ask("acquire p try"), Reason::kSessionEnded));
  EXPECT_TRUE(Refused(daemon.inspector().EndSession(SessionId(12345)), Reason::kNotFound, {{"id", "12345"}}));
  actor.Quit();
  daemon.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
