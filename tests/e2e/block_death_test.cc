// The broker is killed while workers are at work for it: what they make and give back is in the next one's books.

#include <signal.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/block_handle.h"
#include "gtest/gtest.h"
#include "tests/support/actor_handle.h"
#include "tests/support/proc.h"
#include "tests/support/test_daemon.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr uint64_t kMiB = 1 << 20;

// The daemon's own account.
Books Account(TestDaemon& daemon) {
  Books books = daemon.TakeBooks();
  books.fds.clear();
  return books;
}

// The only worker does nothing more until it is let go on.
class StoppedWorker {
 public:
  explicit StoppedWorker(const TestDaemon& daemon) : pid_(daemon.workers().at(0)) { ::kill(pid_, SIGSTOP); }
  ~StoppedWorker() { GoOn(); }
  void GoOn() { ::kill(pid_, SIGCONT); }

 private:
  const pid_t pid_;
};

TEST(BlockDeathTest, AnAllocationThatIsUnderWayIsAnsweredOnceAndLeaksNothing) {
  TestDaemon daemon;
  for (int life = 0; life < 3; ++life) {
    Actor actor(daemon);
    StoppedWorker worker(daemon);
    const Books before = Account(daemon);
    actor.Tell(absl::StrCat("allocate b ", (4 + life) * 2 * kMiB));
    ASSERT_TRUE(daemon.BooksBecome([&](const Books& books) { return books.reserved > before.reserved; }));
    daemon.KillBroker();
    EXPECT_EQ(Account(daemon).reserved, (4 + life) * 2 * kMiB) << "it is being made, for the same one";
    worker.GoOn();
    EXPECT_TRUE(Ok(actor.Answer()));
    const Books after = Account(daemon);
    EXPECT_EQ(after.live, (4 + life) * 2 * kMiB) << Describe(after);
    EXPECT_EQ(after.reserved, 0u);
    EXPECT_EQ(after.blocks, 1u);
    EXPECT_TRUE(Ok(actor.Ask("map b")));
    EXPECT_TRUE(Ok(actor.Ask("fill b 3")));
    EXPECT_TRUE(Ok(actor.Ask("unmap b")));
    EXPECT_TRUE(Ok(actor.Ask("free b")));
    actor.Quit();
    ASSERT_TRUE(daemon.BooksBecome([](const Books& books) { return books.blocks == 0 && books.retired == 0; }));
  }
  daemon.ExpectBooksBack();
}

TEST(BlockDeathTest, WhatIsMadeAndGivenBackWhileThereIsNoBrokerIsFoundOut) {
  TestDaemon daemon;
  Actor asker(daemon);
  Actor freer(daemon);
  freer.Allocate("f", 4 * kMiB);
  {
    StoppedWorker worker(daemon);
    asker.Tell(absl::StrCat("allocate b ", 8 * kMiB));
    EXPECT_TRUE(Ok(freer.Ask("free f")));
    ASSERT_TRUE(daemon.BooksBecome(
        [](const Books& books) { return books.reserved == 8 * kMiB && books.retired == 4 * kMiB; }));
    // A stopped vault starts no broker.
    daemon.vault().Signal(SIGSTOP);
    ASSERT_EQ(::kill(daemon.broker(), SIGKILL), 0);
  }
  daemon.vault().Signal(SIGCONT);
  EXPECT_TRUE(Ok(asker.Answer()));
  EXPECT_TRUE(daemon.BooksBecome([](const Books& books) {
    return books.live == 8 * kMiB && books.retired == 0 && books.reserved == 0 && books.blocks == 1;
  })) << Describe(Account(daemon));
  asker.Quit();
  freer.Quit();
  daemon.ExpectBooksBack();
}

TEST(BlockDeathTest, WhoDiesWhileItsBlockIsBeingMadeLeavesNothingBehind) {
  TestDaemon daemon;
  auto actor = std::make_unique<Actor>(daemon);
  {
    StoppedWorker worker(daemon);
    actor->Tell(absl::StrCat("allocate b ", 8 * kMiB));
    ASSERT_TRUE(daemon.BooksBecome([](const Books& books) { return books.reserved == 8 * kMiB; }));
    actor->Kill();
    daemon.KillBroker();
  }
  daemon.ExpectBooksBack();
}

TEST(BlockDeathTest, ABlockOfAContextWorkerKeepsItsDataAndItsHandle) {
  TestDaemon daemon;
  Actor owner(daemon);
  const BlockHandle handle =
      Must(ParseHandle(owner.Do(absl::StrCat("allocate i ", 4 * kMiB, " kind=ipc"))), "handle");
  owner.Do("map i");
  owner.Do("fill i 7");
  const Books before = Account(daemon);
  for (int life = 0; life < 3; ++life) {
    daemon.KillBroker();
    EXPECT_EQ(Account(daemon), before);
    EXPECT_TRUE(Ok(owner.Ask("access i")));
    EXPECT_TRUE(Ok(owner.Ask("check i 7")));
    Actor importer(daemon);
    EXPECT_TRUE(Ok(owner.Ask(absl::StrCat("grant-session i ", importer.session().value()))));
    EXPECT_TRUE(Ok(importer.Ask(absl::StrCat("import i ", FormatHandle(handle)))));
    EXPECT_TRUE(Ok(importer.Ask("map i")));
    EXPECT_TRUE(Ok(importer.Ask("check i 7")));
    importer.Quit();
    ASSERT_TRUE(daemon.BooksBecome([&](const Books& books) { return books.imports == before.imports; }));
  }
  EXPECT_TRUE(Ok(owner.Ask("unmap i")));
  EXPECT_TRUE(Ok(owner.Ask("free i")));
  owner.Quit();
  EXPECT_TRUE(daemon.BooksBecome([](const Books& books) { return books.blocks == 0 && books.live == 0; }));
}

}  // namespace
}  // namespace berth::testing
