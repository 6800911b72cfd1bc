// What a client still owes the daemon when it leaves its session: nothing of it stays out while the process lives.

#include <signal.h>
#include <sys/types.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "common/error.h"
#include "gtest/gtest.h"
#include "tests/support/actor_handle.h"
#include "tests/support/test_daemon.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

bool NothingIsOut(const Books& books) {
  return books.permits == 0 && books.waiters == 0 && books.blocks == 0 && books.imports == 0 &&
         books.live + books.retired + books.quarantined == 0;
}

TEST(DebtsTest, WhatASilentDaemonDidNotTakeBackIsTakenBackAfterTheSessionWasLeft) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  Actor actor(daemon);
  actor.Do("acquire p");
  actor.Do("allocate b 4096");
  actor.Do("map b");
  const pid_t broker = daemon.broker();
  ASSERT_EQ(::kill(broker, SIGSTOP), 0);
  // Release and free find nobody, and leaving does not wait for them.
  actor.Do("close");
  ASSERT_EQ(::kill(broker, SIGCONT), 0);
  EXPECT_TRUE(daemon.BooksBecome(NothingIsOut)) << Describe(daemon.TakeBooks());
  // Only now is the session left, and ends; all this by what was owed, not by the process's death.
  EXPECT_TRUE(daemon.BooksBecome([](const Books& books) { return books.sessions == 1; }));
  EXPECT_EQ(actor.Do("pid"), absl::StrCat(actor.pid()));
  actor.Quit();
  daemon.ExpectBooksBack();
}

TEST(DebtsTest, AProcessThatLeavesASessionThatLivesOnLeavesNothingInIt) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  Actor parent(daemon);
  parent.Do("child");
  parent.Do("tell acquire p");
  const pid_t broker = daemon.broker();
  ASSERT_EQ(::kill(broker, SIGSTOP), 0);
  parent.Do("tell close");
  ASSERT_EQ(::kill(broker, SIGCONT), 0);
  EXPECT_TRUE(daemon.BooksBecome(NothingIsOut)) << Describe(daemon.TakeBooks());
  // The session is as usable as before.
  EXPECT_TRUE(Ok(parent.Ask("acquire p try")));
  parent.Quit();
  daemon.ExpectBooksBack();
}

TEST(DebtsTest, AWaitThatEndedWithoutAnAnswerLeavesNoPermitBehind) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  Actor holder(daemon);
  holder.Do("acquire p");
  Actor waiter(daemon);
  waiter.Do("begin w");
  ASSERT_TRUE(daemon.BooksBecome([](const Books& books) { return books.waiters == 1; }));
  const pid_t broker = daemon.broker();
  ASSERT_EQ(::kill(broker, SIGSTOP), 0);
  waiter.Do("cancel w");
  EXPECT_EQ(waiter.Ask("join w").status().code(), absl::StatusCode::kCancelled);
  waiter.Do("close");
  holder.Kill();
  // The daemon learns of the holder's death and of the cancel together, in whatever order.
  ASSERT_EQ(::kill(broker, SIGCONT), 0);
  EXPECT_TRUE(daemon.BooksBecome(NothingIsOut)) << Describe(daemon.TakeBooks());
  EXPECT_EQ(waiter.Do("pid"), absl::StrCat(waiter.pid()));
  waiter.Quit();
  daemon.ExpectBooksBack();
}

}  // namespace
}  // namespace berth::testing
