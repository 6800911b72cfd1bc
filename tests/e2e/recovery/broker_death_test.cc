// The broker is killed while permits and blocks are granted: the next broker continues in the same state, to the permit
// and to the byte.
//
// BERTH_FAULT_KILLS sets how often it is killed in a row (5, in the soak 20), BERTH_FAULT_SEED seeds the moments.

#include <signal.h>

#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <berth/block_handle.h>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "berth/v1/device.pb.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/environment.h"
#include "tests/support/random_moment.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr uint64_t kMiB = 1 << 20;

// Returns the daemon's own accounting of leases.
Accounts Account(TestDaemon& daemon) {
  Accounts accounts = daemon.TakeAccounts();
  accounts.fds.clear();
  return accounts;
}

TEST(BrokerDeathTest, BrokerDeathKeepsPermitsAndWaiterPlaces) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=2"}});
  std::vector<std::unique_ptr<Actor>> actors;
  for (int i = 0; i < 5; ++i) {
    actors.push_back(std::make_unique<Actor>(daemon));
    actors.back()->Do(i < 2 ? "acquire p" : "begin p");
    ASSERT_TRUE(daemon.AccountsBecome(
        [&](const Accounts& accounts) { return accounts.permits + accounts.waiters == static_cast<uint64_t>(i) + 1; }));
  }
  const Accounts before = Account(daemon);
  const uint64_t incarnation = daemon.GetNode().incarnation();
  daemon.KillBroker();
  EXPECT_TRUE(Eventually([&] { return Account(daemon) == before; })) << Describe(Account(daemon));
  const v1::Node node = daemon.GetNode();
  EXPECT_EQ(node.incarnation(), incarnation);
  EXPECT_EQ(node.epoch(), 2u);
  // The waiters are granted in order, each after the release of a permit that an earlier broker granted.
  for (size_t i = 2; i < actors.size(); ++i) {
    EXPECT_TRUE(Ok(actors[i - 2]->Ask("release p"))) << i;
    EXPECT_TRUE(Ok(actors[i]->Ask("join p"))) << i;
    EXPECT_EQ(Account(daemon).permits, 2u);
    EXPECT_EQ(Account(daemon).waiters, actors.size() - 1 - i);
  }
  for (const auto& actor : actors) actor->Quit();
  daemon.ExpectAccountsBack();
}

TEST(BrokerDeathTest, BrokerDeathKeepsBlocksDataImportsAndBytes) {
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
  const Accounts before = Account(daemon);
  for (int life = 0; life < 3; ++life) {
    daemon.KillBroker();
    ASSERT_TRUE(Eventually([&] { return Account(daemon) == before; })) << Describe(Account(daemon));
    for (Actor* const actor : {&owner, &importer}) {
      EXPECT_TRUE(Ok(actor->Ask("access b")));
      EXPECT_TRUE(Ok(actor->Ask("check b 3")));
    }
    // The block can still be shared.
    Actor other(daemon);
    EXPECT_TRUE(Ok(owner.Ask(absl::StrCat("grant-session b ", other.session().value()))));
    EXPECT_TRUE(Ok(other.Ask(absl::StrCat("import b ", FormatHandle(handle)))));
    EXPECT_TRUE(Ok(other.Ask("map b")));
    EXPECT_TRUE(Ok(other.Ask("check b 3")));
    other.Quit();
    ASSERT_TRUE(daemon.AccountsBecome([&](const Accounts& accounts) { return accounts.imports == before.imports; }));
  }
  // A free that spans the death still waits for the other process.
  EXPECT_TRUE(Ok(owner.Ask("unmap b")));
  EXPECT_TRUE(Ok(owner.Ask("free b")));
  ASSERT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.quarantined == 4 * kMiB; }));
  daemon.KillBroker();
  EXPECT_EQ(Account(daemon).quarantined, 4 * kMiB);
  EXPECT_TRUE(Ok(importer.Ask("check b 3")));
  importer.Quit();
  owner.Quit();
  daemon.ExpectAccountsBack();
}

TEST(BrokerDeathTest, DeathWithoutBrokerFreesLeases) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=2"}});
  Actor survivor(daemon);
  survivor.Do("acquire p");
  auto holder = std::make_unique<Actor>(daemon);
  holder->Do("acquire p");
  holder->Do(absl::StrCat("allocate b ", kMiB));
  Actor waiter(daemon);
  waiter.Do("begin p");
  ASSERT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1; }));
  // A stopped supervisor starts no broker.
  daemon.supervisor().Signal(SIGSTOP);
  ASSERT_EQ(::kill(daemon.broker(), SIGKILL), 0);
  holder->Kill();
  daemon.supervisor().Signal(SIGCONT);
  EXPECT_TRUE(Ok(waiter.Ask("join p")));
  ASSERT_TRUE(
      daemon.AccountsBecome([](const Accounts& accounts) { return accounts.permits == 2 && accounts.blocks == 0; }));
  EXPECT_TRUE(Ok(survivor.Ask("release p")));
  survivor.Quit();
  waiter.Quit();
  daemon.ExpectAccountsBack();
}

TEST(BrokerDeathTest, RepeatedBrokerDeathsLoseNothing) {
  const uint64_t kills = FromEnvironment("BERTH_FAULT_KILLS", GateOrSoak(5, 20));
  const uint64_t seed = SeedFromEnvironment("BERTH_FAULT_SEED");
  const absl::Cleanup name = [&] {
    if (::testing::Test::HasFailure()) ADD_FAILURE() << "BERTH_FAULT_SEED=" << seed;
  };
  std::mt19937_64 random(seed);
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=3"}});
  Actor bystander(daemon);
  bystander.Do(absl::StrCat("allocate kept ", 2 * kMiB));
  bystander.Do("map kept");
  bystander.Do("fill kept 9");
  std::vector<std::unique_ptr<Actor>> actors;
  for (int i = 0; i < 3; ++i) actors.push_back(std::make_unique<Actor>(daemon));
  // Kills while a client waited for an answer, and the number of awaited answers.
  uint64_t met = 0, calls = 0;
  for (uint64_t kill = 0; kill < kills; ++kill) {
    const pid_t broker = daemon.broker();
    // Each actor acquires and releases twice while the broker dies.
    constexpr uint64_t kCalls = 8;
    for (const auto& actor : actors) {
      for (uint64_t call = 0; call < kCalls; call += 4) {
        actor->SendLine("acquire p");
        actor->SendLine(absl::StrCat("allocate b ", kMiB));
        actor->SendLine("free b");
        actor->SendLine("release p");
      }
    }
    // At any point of their work.
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
        // The SDK repeats a release that no broker received within 2 s until a broker receives it.
        if (answer % 4 >= 2 && absl::IsDeadlineExceeded(said.status())) continue;
        ASSERT_TRUE(Ok(said)) << kill << " " << answer;
      }
    }
    ASSERT_TRUE(Ok(bystander.Ask("check kept 9"))) << kill;
    if (::testing::Test::HasFailure()) return;
  }
  std::cout << met << " of " << kills << " kills met calls, " << calls << " in all" << std::endl;
  EXPECT_GT(met, 0u);
  EXPECT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) {
    return accounts.permits == 0 && accounts.blocks == 1;
  })) << Describe(Account(daemon));
  for (const auto& actor : actors) actor->Quit();
  bystander.Quit();
  daemon.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
