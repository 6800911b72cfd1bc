// Sessions over processes: who belongs to one, and when it ends.

#include <signal.h>
#include <sys/types.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/error.h"
#include "gtest/gtest.h"
#include "tests/support/actor_handle.h"
#include "tests/support/proc.h"
#include "tests/support/test_daemon.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

TEST(SessionsTest, AForkedChildThatDidNotExecIsToldSo) {
  TestDaemon daemon;
  Actor actor(daemon);
  actor.Do("acquire p");
  const std::string said = actor.Do("fork-try");
  EXPECT_TRUE(absl::StartsWith(said, "FAILED_PRECONDITION")) << said;
  EXPECT_FALSE(absl::StrContains(said, "OK")) << said;
  // The parent is as before.
  EXPECT_TRUE(Ok(actor.Ask("release p")));
  EXPECT_TRUE(Ok(actor.Ask("acquire p")));
  actor.Quit();
  daemon.ExpectBooksBack();
}

TEST(SessionsTest, AnExecedChildJoinsWhatItInherited) {
  TestDaemon daemon;
  Actor parent(daemon);
  parent.Do("child");
  EXPECT_EQ(parent.Do("tell session"), parent.Do("session"));
  const v1::ListSessionsResponse sessions = Must(daemon.inspector().ListSessions());
  ASSERT_EQ(sessions.sessions_size(), 2);
  EXPECT_EQ(sessions.sessions(1).processes_size(), 2);
  // Blocks of the session are for all of its processes.
  const std::string handle = parent.Do("allocate b 4096");
  EXPECT_TRUE(Ok(parent.Ask(absl::StrCat("tell import b ", handle))));
  parent.Quit();
  daemon.ExpectBooksBack();
}

TEST(SessionsTest, ASessionOutlivesItsOpenerWithWhomeverInheritedIt) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  Actor parent(daemon);
  parent.Do("acquire p");
  parent.Do("child");
  const pid_t child = static_cast<pid_t>(std::stoi(parent.Do("tell pid")));
  // Stopped, it cannot see that nobody tells it anything any more, and ends only when it is let.
  ASSERT_EQ(::kill(child, SIGSTOP), 0);
  parent.Kill();
  Actor other(daemon);
  other.Tell("acquire p");
  ASSERT_TRUE(daemon.BooksBecome([](const Books& books) { return books.waiters == 1; }));
  EXPECT_EQ(daemon.TakeBooks().permits, 1u);
  ASSERT_EQ(::kill(child, SIGCONT), 0);
  EXPECT_TRUE(Ok(other.Answer()));
  EXPECT_TRUE(Eventually([&] { return !IsAlive(child); }));
  other.Quit();
  daemon.ExpectBooksBack();
}

TEST(SessionsTest, AHolderThatLivesOnWithoutItsSocketsKeepsItsPermitUntilItEnds) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  Actor holder(daemon);
  holder.Do("acquire p");
  holder.Do("begin w key=other");
  ASSERT_TRUE(daemon.BooksBecome([](const Books& books) { return books.waiters == 1; }));
  holder.Tell("closefds");
  // Its waiter leaves, its session is ending, and nothing is given to anybody else: it lives and may use the
  // GPU.
  ASSERT_TRUE(daemon.BooksBecome([](const Books& books) { return books.waiters == 0; }));
  Actor other(daemon);
  EXPECT_TRUE(Refused(other.Ask("acquire p try"), Reason::kNoPermit));
  const v1::ListSessionsResponse sessions = Must(daemon.inspector().ListSessions());
  EXPECT_EQ(sessions.sessions(1).state(), v1::Session::ENDING);
  holder.Kill();
  EXPECT_TRUE(Ok(other.Ask("acquire p")));
  other.Quit();
  daemon.ExpectBooksBack();
}

TEST(SessionsTest, AHolderThatExecsSomethingElseKeepsItsPermitUntilItEnds) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  Actor holder(daemon);
  holder.Do("acquire p");
  EXPECT_EQ(holder.Do("exec-idle"), "idle");
  Actor other(daemon);
  EXPECT_TRUE(Refused(other.Ask("acquire p try"), Reason::kNoPermit));
  other.Tell("acquire p");
  ASSERT_TRUE(daemon.BooksBecome([](const Books& books) { return books.waiters == 1; }));
  EXPECT_EQ(daemon.TakeBooks().permits, 1u);
  holder.process().CloseInput();
  EXPECT_EQ(holder.process().Wait(), 0);
  EXPECT_TRUE(Ok(other.Answer()));
  other.Quit();
  daemon.ExpectBooksBack();
}

TEST(SessionsTest, AnEndedSessionGrantsNothingAndKeepsWhatItHolds) {
  TestDaemon daemon;
  Actor actor(daemon);
  actor.Do("acquire p");
  actor.Do("allocate b 4096");
  EXPECT_TRUE(Ok(actor.Ask("end")));
  EXPECT_TRUE(Refused(actor.Ask("acquire q key=q try"), Reason::kSessionEnded));
  EXPECT_TRUE(Refused(actor.Ask("allocate c 4096"), Reason::kSessionEnded));
  // Its process lives and may still use both.
  const Books books = daemon.TakeBooks();
  EXPECT_EQ(books.permits, 1u);
  EXPECT_EQ(books.imports, 1u);
  actor.Quit();
  daemon.ExpectBooksBack();
}

TEST(SessionsTest, AnOperatorEndsAnySession) {
  TestDaemon daemon;
  Actor actor(daemon);
  EXPECT_TRUE(Ok(daemon.inspector().EndSession(actor.session())));
  EXPECT_TRUE(Refused(actor.Ask("acquire p try"), Reason::kSessionEnded));
  EXPECT_TRUE(Refused(daemon.inspector().EndSession(SessionId(12345)), Reason::kNotFound, {{"id", "12345"}}));
  actor.Quit();
  daemon.ExpectBooksBack();
}

}  // namespace
}  // namespace berth::testing
