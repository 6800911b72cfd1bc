// The broker is killed with everything out: its next life goes on where it was, to the permit and to the byte.
//
// BERTH_FAULT_KILLS sets how often it is killed in a row (5, in the soak 20), BERTH_FAULT_SEED says the moments.

#include <signal.h>

#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/block_handle.h"
#include "gtest/gtest.h"
#include "tests/support/actor_handle.h"
#include "tests/support/environment.h"
#include "tests/support/random_moment.h"
#include "tests/support/test_daemon.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr uint64_t kMiB = 1 << 20;

// The daemon's own account of what is out.
Books Account(TestDaemon& daemon) {
  Books books = daemon.TakeBooks();
  books.fds.clear();
  return books;
}

TEST(BrokerDeathTest, PermitsStayOutAndWaitersKeepTheirPlaces) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=2"}});
  std::vector<std::unique_ptr<Actor>> actors;
  for (int i = 0; i < 5; ++i) {
    actors.push_back(std::make_unique<Actor>(daemon));
    actors.back()->Do(i < 2 ? "acquire p" : "begin p");
    ASSERT_TRUE(daemon.BooksBecome(
        [&](const Books& books) { return books.permits + books.waiters == static_cast<uint64_t>(i) + 1; }));
  }
  const Books before = Account(daemon);
  const uint64_t incarnation = Must(daemon.inspector().GetNode()).incarnation();
  daemon.KillBroker();
  const Books after = Account(daemon);
  EXPECT_EQ(after, before) << Describe(after);
  const v1::Node node = Must(daemon.inspector().GetNode());
  EXPECT_EQ(node.incarnation(), incarnation);
  EXPECT_EQ(node.epoch(), 2u);
  // One after the other, as they came; each by a release that an earlier broker's permit is given back with.
  for (size_t i = 2; i < actors.size(); ++i) {
    EXPECT_TRUE(Ok(actors[i - 2]->Ask("release p"))) << i;
    EXPECT_TRUE(Ok(actors[i]->Ask("join p"))) << i;
    EXPECT_EQ(Account(daemon).permits, 2u);
    EXPECT_EQ(Account(daemon).waiters, actors.size() - 1 - i);
  }
  for (const auto& actor : actors) actor->Quit();
  daemon.ExpectBooksBack();
}

TEST(BrokerDeathTest, BlocksKeepTheirDataTheirImportsAndTheirBytes) {
  TestDaemon daemon;
  Actor owner(daemon);
  Actor importer(daemon);
  const BlockHandle handle = owner.Allocate("b", 4 * kMiB);
  owner.Do("map b");
  owner.Do("fill b 3");
  owner.Do(absl::StrCat("grant-session b ", importer.session().value()));
  importer.Do(absl::StrCat("import b ", FormatHandle(handle)));
  importer.Do("map b");
  owner.Do(absl::StrCat("reserve r 0=", 8 * kMiB));
  const Books before = Account(daemon);
  for (int life = 0; life < 3; ++life) {
    daemon.KillBroker();
    const Books after = Account(daemon);
    ASSERT_EQ(after, before) << Describe(after);
    for (Actor* const actor : {&owner, &importer}) {
      EXPECT_TRUE(Ok(actor->Ask("access b")));
      EXPECT_TRUE(Ok(actor->Ask("check b 3")));
    }
    // It goes on being lent.
    Actor other(daemon);
    EXPECT_TRUE(Ok(owner.Ask(absl::StrCat("grant-session b ", other.session().value()))));
    EXPECT_TRUE(Ok(other.Ask(absl::StrCat("import b ", FormatHandle(handle)))));
    EXPECT_TRUE(Ok(other.Ask("map b")));
    EXPECT_TRUE(Ok(other.Ask("check b 3")));
    other.Quit();
    ASSERT_TRUE(daemon.BooksBecome([&](const Books& books) { return books.imports == before.imports; }));
  }
  // A free over a death still waits for the other one.
  EXPECT_TRUE(Ok(owner.Ask("unmap b")));
  EXPECT_TRUE(Ok(owner.Ask("free b")));
  ASSERT_TRUE(daemon.BooksBecome([](const Books& books) { return books.quarantined == 4 * kMiB; }));
  daemon.KillBroker();
  EXPECT_EQ(Account(daemon).quarantined, 4 * kMiB);
  EXPECT_TRUE(Ok(importer.Ask("check b 3")));
  importer.Quit();
  owner.Quit();
  daemon.ExpectBooksBack();
}

TEST(BrokerDeathTest, WhoDiedWhileThereWasNoBrokerIsFreed) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=2"}});
  Actor survivor(daemon);
  survivor.Do("acquire p");
  auto holder = std::make_unique<Actor>(daemon);
  holder->Do("acquire p");
  holder->Do(absl::StrCat("allocate b ", kMiB));
  Actor waiter(daemon);
  waiter.Do("begin p");
  ASSERT_TRUE(daemon.BooksBecome([](const Books& books) { return books.waiters == 1; }));
  // A stopped vault starts no broker.
  daemon.vault().Signal(SIGSTOP);
  ASSERT_EQ(::kill(daemon.broker(), SIGKILL), 0);
  holder->Kill();
  daemon.vault().Signal(SIGCONT);
  EXPECT_TRUE(Ok(waiter.Ask("join p")));
  ASSERT_TRUE(daemon.BooksBecome([](const Books& books) { return books.permits == 2 && books.blocks == 0; }));
  EXPECT_TRUE(Ok(survivor.Ask("release p")));
  survivor.Quit();
  waiter.Quit();
  daemon.ExpectBooksBack();
}

TEST(BrokerDeathTest, KilledAgainAndAgainItLosesNothing) {
  const uint64_t kills = FromEnvironment("BERTH_FAULT_KILLS", ByLane(5, 20));
  const uint64_t seed = SeedFromEnvironment("BERTH_FAULT_SEED");
  const absl::Cleanup name = [&] {
    if (::testing::Test::HasFailure()) ADD_FAILURE() << "BERTH_FAULT_SEED=" << seed;
  };
  std::cout << "BERTH_FAULT_SEED=" << seed << std::endl;
  std::mt19937_64 random(seed);
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=3"}});
  Actor keeper(daemon);
  keeper.Do(absl::StrCat("allocate kept ", 2 * kMiB));
  keeper.Do("map kept");
  keeper.Do("fill kept 9");
  std::vector<std::unique_ptr<Actor>> actors;
  for (int i = 0; i < 3; ++i) actors.push_back(std::make_unique<Actor>(daemon));
  // Kills while somebody waited for an answer, and answers that were waited for.
  uint64_t met = 0, calls = 0;
  for (uint64_t kill = 0; kill < kills; ++kill) {
    const pid_t broker = daemon.broker();
    // Each takes and gives back, twice, while the broker dies under it.
    constexpr uint64_t kCalls = 8;
    for (const auto& actor : actors) {
      for (uint64_t call = 0; call < kCalls; call += 4) {
        actor->Tell("acquire p");
        actor->Tell(absl::StrCat("allocate b ", kMiB));
        actor->Tell("free b");
        actor->Tell("release p");
      }
    }
    // Wherever they are by then.
    AwaitRandomMoment(random, absl::Milliseconds(5));
    ASSERT_EQ(::kill(broker, SIGKILL), 0);
    uint64_t open = 0;
    for (const auto& actor : actors) open += kCalls - actor->process().LinesByNow();
    met += open > 0 ? 1 : 0;
    calls += open;
    daemon.AwaitBrokerAfter(broker);
    for (const auto& actor : actors) {
      for (uint64_t answer = 0; answer < kCalls; ++answer) {
        const absl::StatusOr<std::string> said = actor->Answer();
        // What is given back, and no broker heard within 2 s, is said again until one has.
        if (answer % 4 >= 2 && absl::IsDeadlineExceeded(said.status())) continue;
        ASSERT_TRUE(Ok(said)) << kill << " " << answer;
      }
    }
    ASSERT_TRUE(Ok(keeper.Ask("check kept 9"))) << kill;
    if (::testing::Test::HasFailure()) return;
  }
  std::cout << met << " of " << kills << " kills met calls, " << calls << " in all" << std::endl;
  EXPECT_GT(met, 0u);
  EXPECT_TRUE(daemon.BooksBecome([](const Books& books) { return books.permits == 0 && books.blocks == 1; }))
      << Describe(Account(daemon));
  for (const auto& actor : actors) actor->Quit();
  keeper.Quit();
  daemon.ExpectBooksBack();
}

}  // namespace
}  // namespace berth::testing
