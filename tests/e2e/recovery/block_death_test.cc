// The broker is killed while workers run its commands: the next broker accounts for what they allocate and release.

#include <signal.h>

#include <memory>
#include <string>

#include <berth/block_handle.h>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/proc.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr uint64_t kMiB = 1 << 20;

// Returns the daemon's own accounting.
Accounts Account(TestDaemon& daemon) {
  Accounts accounts = daemon.TakeAccounts();
  accounts.fds.clear();
  return accounts;
}

// Stops the only worker until it is resumed.
class StoppedWorker {
 public:
  explicit StoppedWorker(const TestDaemon& daemon) : pid_(daemon.workers().at(0)) { ::kill(pid_, SIGSTOP); }
  ~StoppedWorker() { GoOn(); }
  void GoOn() { ::kill(pid_, SIGCONT); }

 private:
  const pid_t pid_;
};

TEST(BlockDeathTest, PendingAllocationIsAnsweredOnceWithoutLeak) {
  TestDaemon daemon;
  for (int life = 0; life < 3; ++life) {
    Actor actor(daemon);
    StoppedWorker worker(daemon);
    const Accounts before = Account(daemon);
    actor.SendLine(absl::StrCat("allocate b ", (4 + life) * 2 * kMiB));
    ASSERT_TRUE(daemon.AccountsBecome([&](const Accounts& accounts) { return accounts.reserved > before.reserved; }));
    daemon.KillBroker();
    EXPECT_EQ(Account(daemon).reserved, (4 + life) * 2 * kMiB) << "it is being made, for the same one";
    worker.GoOn();
    EXPECT_TRUE(Ok(actor.Answer()));
    const Accounts after = Account(daemon);
    EXPECT_EQ(after.live, (4 + life) * 2 * kMiB) << Describe(after);
    EXPECT_EQ(after.reserved, 0u);
    EXPECT_EQ(after.blocks, 1u);
    EXPECT_TRUE(Ok(actor.Ask("map b")));
    EXPECT_TRUE(Ok(actor.Ask("fill b 3")));
    EXPECT_TRUE(Ok(actor.Ask("unmap b")));
    EXPECT_TRUE(Ok(actor.Ask("free b")));
    actor.Quit();
    ASSERT_TRUE(
        daemon.AccountsBecome([](const Accounts& accounts) { return accounts.blocks == 0 && accounts.retired == 0; }));
  }
  daemon.ExpectAccountsBack();
}

TEST(BlockDeathTest, CreationAndFreeDuringBrokerDeathAreRecovered) {
  TestDaemon daemon;
  Actor requester(daemon);
  Actor freer(daemon);
  freer.Allocate("f", 4 * kMiB);
  {
    StoppedWorker worker(daemon);
    requester.SendLine(absl::StrCat("allocate b ", 8 * kMiB));
    EXPECT_TRUE(Ok(freer.Ask("free f")));
    ASSERT_TRUE(daemon.AccountsBecome(
        [](const Accounts& accounts) { return accounts.reserved == 8 * kMiB && accounts.retired == 4 * kMiB; }));
    // A stopped supervisor starts no broker.
    daemon.supervisor().Signal(SIGSTOP);
    ASSERT_EQ(::kill(daemon.broker(), SIGKILL), 0);
  }
  daemon.supervisor().Signal(SIGCONT);
  EXPECT_TRUE(Ok(requester.Answer()));
  EXPECT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) {
    return accounts.live == 8 * kMiB && accounts.retired == 0 && accounts.reserved == 0 && accounts.blocks == 1;
  })) << Describe(Account(daemon));
  requester.Quit();
  freer.Quit();
  daemon.ExpectAccountsBack();
}

TEST(BlockDeathTest, DeathDuringCreationLeavesNoBlock) {
  TestDaemon daemon;
  auto actor = std::make_unique<Actor>(daemon);
  {
    StoppedWorker worker(daemon);
    actor->SendLine(absl::StrCat("allocate b ", 8 * kMiB));
    ASSERT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.reserved == 8 * kMiB; }));
    actor->Kill();
    daemon.KillBroker();
  }
  daemon.ExpectAccountsBack();
}

TEST(BlockDeathTest, IpcBlockRetainsDataAndHandle) {
  TestDaemon daemon;
  Actor owner(daemon);
  const BlockHandle handle = owner.Allocate("i", 4 * kMiB, "ipc");
  owner.Do("map i");
  owner.Do("fill i 7");
  const Accounts before = Account(daemon);
  for (int life = 0; life < 3; ++life) {
    daemon.KillBroker();
    EXPECT_TRUE(Eventually([&] { return Account(daemon) == before; })) << Describe(Account(daemon));
    EXPECT_TRUE(Ok(owner.Ask("access i")));
    EXPECT_TRUE(Ok(owner.Ask("check i 7")));
    Actor importer(daemon);
    EXPECT_TRUE(Ok(owner.Ask(absl::StrCat("grant-session i ", importer.session().value()))));
    EXPECT_TRUE(Ok(importer.Ask(absl::StrCat("import i ", FormatHandle(handle)))));
    EXPECT_TRUE(Ok(importer.Ask("map i")));
    EXPECT_TRUE(Ok(importer.Ask("check i 7")));
    importer.Quit();
    ASSERT_TRUE(daemon.AccountsBecome([&](const Accounts& accounts) { return accounts.imports == before.imports; }));
  }
  EXPECT_TRUE(Ok(owner.Ask("unmap i")));
  EXPECT_TRUE(Ok(owner.Ask("free i")));
  owner.Quit();
  EXPECT_TRUE(
      daemon.AccountsBecome([](const Accounts& accounts) { return accounts.blocks == 0 && accounts.live == 0; }));
}

}  // namespace
}  // namespace berth::testing
