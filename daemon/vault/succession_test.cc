// What becomes of a daemon whose vault is gone, with real processes.

#include <errno.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/state_page.h"
#include "daemon/vault/vault_test_daemon.h"

namespace berth {
namespace {

using ::testing::HasSubstr;

class SuccessionTest : public VaultTest {
 protected:
  // The pid in the folder's lock file, which is the vault's.
  int VaultPid() const {
    std::ifstream file(folder_ + "/berthd.lock");
    int pid = 0;
    file >> pid;
    return pid;
  }

  // Kills the vault. Returns the pid of the one that follows.
  int KillVault() {
    const int before = VaultPid();
    EXPECT_GT(before, 1);
    if (before <= 1) return before;
    const UniqueFd pidfd = OpenPidfd(before);
    ::kill(before, SIGKILL);
    EXPECT_TRUE(WaitReadable(pidfd.get()));
    // A broker that answers has given everything away.
    Ask("facts");
    for (int i = 0; i < kPatienceMs && VaultPid() == before; ++i) ::poll(nullptr, 0, 1);
    EXPECT_NE(VaultPid(), before);
    return VaultPid();
  }

  // Ends the daemon as an operator does, whoever is its vault by now.
  void Stop() {
    const UniqueFd pidfd = OpenPidfd(VaultPid());
    ::kill(VaultPid(), SIGTERM);
    EXPECT_TRUE(WaitReadable(pidfd.get()));
    EXPECT_FALSE(Exists("berthd.sock"));
  }
};

TEST_F(SuccessionTest, AKilledVaultIsFollowedByOneThatHasEverything) {
  const auto daemon = StartReady();
  const std::vector<std::string> before = Facts();
  const StatePage page = daemon->Page();
  EXPECT_EQ(Ask("put 41 forty-one"), "OK");
  const UniqueFd broker = OpenPidfd(daemon->Child("berth-broker"));
  KillVault();
  EXPECT_EQ(Facts(), before) << "the same broker";
  EXPECT_EQ(page->serving, 1u);
  EXPECT_EQ(Ask("put 42 forty-two"), "OK");
  EXPECT_EQ(Ask("create 0"), "2097152") << "the same worker";
  EXPECT_FALSE(IsGone(broker.get()));
  Stop();
  EXPECT_TRUE(IsGone(broker.get()));
}

TEST_F(SuccessionTest, ABrokerThatIsKilledThenIsFollowedByOneThatHasEverything) {
  const auto daemon = StartReady();
  const std::vector<std::string> before = Facts();
  EXPECT_EQ(Ask("put 41 forty-one"), "OK");
  int broker = daemon->Child("berth-broker");
  for (int round = 1; round <= 3; ++round) {
    KillVault();
    const UniqueFd pidfd = OpenPidfd(broker);
    ::kill(broker, SIGKILL);
    ASSERT_TRUE(WaitReadable(pidfd.get()));
    EXPECT_EQ(Ask("text 41"), "forty-one");
    EXPECT_EQ(Ask("held"), "1 1\n1 2\n1 3\n2 0\n3 0\n7 41\n8 0\n8 1\n");
    EXPECT_EQ(Ask("create 1"), "2097152");
    EXPECT_EQ(Facts().at(0), before.at(0));
    EXPECT_EQ(Facts().at(2), absl::StrCat(1 + round)) << "the epoch";
    ASSERT_TRUE(absl::SimpleAtoi(Ask("pid"), &broker));
  }
  Stop();
}

TEST_F(SuccessionTest, TheFolderStaysLocked) {
  const auto daemon = StartReady();
  const int vault = KillVault();
  Daemon second(folder_);
  EXPECT_EQ(second.AwaitExit(), 1);
  EXPECT_THAT(second.Messages(), HasSubstr(absl::StrCat("pid ", vault)));
  Stop();
}

TEST_F(SuccessionTest, WorkersAreWatchedByTheNextVaultToo) {
  const auto daemon = StartReady();
  EXPECT_EQ(Ask("create 0"), "2097152");
  const int worker = daemon->Child("berth-worker0");
  KillVault();
  ::kill(worker, SIGKILL);
  EXPECT_THAT(Ask("await up 0"), HasSubstr("up 0"));
  EXPECT_EQ(Ask("create 0"), "2097152");
  Stop();
}

TEST_F(SuccessionTest, AWorkerThatEndsWithTheVaultIsFollowedByAnother) {
  const auto daemon = StartReady();
  EXPECT_EQ(Ask("create 0"), "2097152");
  const int worker = daemon->Child("berth-worker0");
  // Nobody hears of it.
  ::kill(VaultPid(), SIGSTOP);
  daemon->KillChild("berth-worker0");
  KillVault();
  EXPECT_THAT(Ask("await up 0"), HasSubstr("up 0"));
  EXPECT_EQ(Ask("create 0"), "2097152");
  EXPECT_FALSE(ProcessName(worker) == "berth-worker0");
  Stop();
}

TEST_F(SuccessionTest, WhatTheVaultWasAskedAndDidNotDoTheNextOneDoes) {
  const auto daemon = StartReady();
  EXPECT_EQ(Ask("put 41 forty-one"), "OK");
  ::kill(VaultPid(), SIGSTOP);
  EXPECT_EQ(Ask("drop 41"), "OK");
  EXPECT_EQ(Ask("order drain 1"), "OK");
  EXPECT_EQ(Ask("put 42 forty-two"), "OK");
  KillVault();
  EXPECT_THAT(Ask("await dropped 7 41"), HasSubstr("dropped 7 41"));
  for (int i = 0; i < kPatienceMs && Ask("status 1").find("drained") == std::string::npos; ++i) {
    ::poll(nullptr, 0, 1);
  }
  EXPECT_THAT(Ask("status 1"), HasSubstr("drained: ordered to drain"));
  const UniqueFd broker = OpenPidfd(daemon->Child("berth-broker"));
  Ask("die");
  EXPECT_THAT(Ask("held"), HasSubstr("7 42"));
  EXPECT_THAT(Ask("held"), ::testing::Not(HasSubstr("7 41")));
  Stop();
}

TEST_F(SuccessionTest, AStoppedDeviceStaysStoppedAndADrainedOneDrained) {
  Daemon daemon(folder_, {{"BERTH_FAKE_STALE", "1"}});
  ASSERT_TRUE(daemon.AwaitReady());
  EXPECT_EQ(Ask("order drain 0"), "OK");
  for (int i = 0; i < kPatienceMs && Ask("status 0").find("drained") == std::string::npos; ++i) {
    ::poll(nullptr, 0, 1);
  }
  const std::string stopped = Ask("status 1");
  EXPECT_THAT(stopped, HasSubstr("uncleared"));
  KillVault();
  Ask("die");
  EXPECT_EQ(Ask("status 1"), stopped);
  EXPECT_THAT(Ask("status 0"), HasSubstr("drained: ordered to drain"));
  Stop();
}

TEST_F(SuccessionTest, ADaemonOutlivesManyVaults) {
  const auto daemon = StartReady();
  EXPECT_EQ(Ask("put 41 forty-one"), "OK");
  for (int i = 0; i < 20; ++i) KillVault();
  Ask("die");
  EXPECT_EQ(Ask("text 41"), "forty-one");
  Stop();
}

TEST_F(SuccessionTest, TheDeathOfBothAtOnceLeavesNothingBehind) {
  const auto daemon = StartReady();
  const std::vector<UniqueFd> children = daemon->ChildrenPidfds();
  ::kill(VaultPid(), SIGSTOP);
  daemon->KillChild("berth-broker");
  ::kill(VaultPid(), SIGKILL);
  for (const UniqueFd& child : children) EXPECT_TRUE(WaitReadable(child.get()));
  const auto next = StartReady();
  EXPECT_EQ(Facts().at(2), "1");
}

}  // namespace
}  // namespace berth
