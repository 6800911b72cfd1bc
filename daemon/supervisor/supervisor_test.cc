// The supervisor's lifetime, its folder and its broker, with real processes.

#include "daemon/supervisor/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/wire/state_page.h"
#include "daemon/supervisor/fd_store/fd_store_wire.h"
#include "daemon/supervisor/testing/supervisor_test_daemon.h"

namespace berth {
namespace {

using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// supervisor.cc's limits add up to less than a second; any further time of a stop is due to the machine.
void PrintTimeSince(steady_clock::time_point start) {
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(steady_clock::now() - start);
  std::cout << "stopped in " << took.count() << " ms" << std::endl;
}

TEST_F(SupervisorTest, BrokerReceivesSocketsPageDevicesAndWorkers) {
  const auto daemon = StartReady();
  EXPECT_EQ(Ask("held"), "1 1\n1 2\n1 3\n1 4\n1 5\n2 0\n3 0\n8 0\n8 1\n");
  EXPECT_EQ(Facts().at(3), "2");
  EXPECT_EQ(Ask("create 0"), "2097152");
  EXPECT_EQ(Ask("create 1"), "2097152");
}

TEST_F(SupervisorTest, SocketsHaveExpectedModes) {
  const auto daemon = StartReady();
  const auto mode = [&](const std::string& name) {
    struct stat info = {};
    ::stat(absl::StrCat(folder_, "/", name).c_str(), &info);
    return info.st_mode & 0777;
  };
  EXPECT_EQ(mode("berthd.sock"), 0660);
  EXPECT_EQ(mode("attach.sock"), 0660);
  EXPECT_EQ(mode("admin.sock"), 0600);
  EXPECT_EQ(mode("observer.sock"), 0600) << "nobody is named an observer";
  EXPECT_TRUE(Connect("admin.sock"));
  EXPECT_TRUE(Connect("attach.sock", SOCK_SEQPACKET));
}

TEST_F(SupervisorTest, SigtermStopsDaemonAndLeavesNothing) {
  auto daemon = StartReady();
  const UniqueFd client = Connect("attach.sock", SOCK_SEQPACKET);
  const std::vector<UniqueFd> children = daemon->ChildrenPidfds();
  ASSERT_EQ(children.size(), 3);
  const auto start = steady_clock::now();
  daemon->Signal(SIGTERM);
  EXPECT_EQ(daemon->AwaitExit(), 0);
  PrintTimeSince(start);
  for (const UniqueFd& child : children) EXPECT_TRUE(WaitReadable(child.get()));
  EXPECT_FALSE(Exists("berthd.sock"));
  EXPECT_FALSE(Exists("admin.sock"));
  EXPECT_FALSE(Exists("attach.sock"));
  EXPECT_FALSE(Exists("observer.sock"));
  EXPECT_EQ(daemon->Messages(), "berthd: no leases to resume: no daemon has served in this folder\n");
}

TEST_F(SupervisorTest, UnresponsiveBrokerIsKilled) {
  Daemon daemon(folder_, {{"BERTH_FAKE_BROKER", "deaf"}, {"BERTH_TEST_PATIENCE", "1"}});
  ASSERT_TRUE(daemon.AwaitReady());
  const auto start = steady_clock::now();
  daemon.Signal(SIGINT);
  EXPECT_EQ(daemon.AwaitExit(), 0);
  PrintTimeSince(start);
  EXPECT_THAT(daemon.Messages(), HasSubstr("broker did not stop within 500 ms"));
}

TEST_F(SupervisorTest, SecondDaemonOnFolderIsRejected) {
  const auto first = StartReady();
  Daemon second(folder_);
  EXPECT_EQ(second.AwaitExit(), 1);
  EXPECT_THAT(second.Messages(), AllOf(HasSubstr(folder_), HasSubstr(absl::StrCat("pid ", first->pid()))));
  EXPECT_EQ(Facts().at(2), "1");
  EXPECT_TRUE(Exists("admin.sock"));
}

TEST_F(SupervisorTest, KilledDaemonsSocketsAndNodeAreTakenOver) {
  auto first = StartReady();
  const std::vector<std::string> before = Facts();
  const std::vector<UniqueFd> children = first->ChildrenPidfds();
  // Without its broker no process can replace the supervisor.
  first->Signal(SIGSTOP);
  first->KillChild("berth-broker");
  first->Signal(SIGKILL);
  EXPECT_EQ(first->AwaitExit(), -1);
  // No process holds the other ends of the workers' sockets.
  for (const UniqueFd& child : children) EXPECT_TRUE(WaitReadable(child.get()));
  EXPECT_TRUE(Exists("berthd.sock"));
  const auto second = StartReady();
  EXPECT_EQ(Facts().at(0), before.at(0));
  EXPECT_EQ(Facts().at(1), before.at(1));
  EXPECT_EQ(Facts().at(2), "2") << "the epoch";
}

TEST_F(SupervisorTest, KilledBrokerIsReplacedWithItsState) {
  const auto daemon = StartReady();
  const std::vector<std::string> before = Facts();
  EXPECT_EQ(Ask("put 41 forty-one"), "OK");
  daemon->KillChild("berth-broker");
  EXPECT_EQ(Ask("text 41"), "forty-one");
  EXPECT_EQ(Ask("held"), "1 1\n1 2\n1 3\n1 4\n1 5\n2 0\n3 0\n7 41\n8 0\n8 1\n");
  EXPECT_EQ(Ask("create 0"), "2097152");
  const std::vector<std::string> after = Facts();
  EXPECT_EQ(after.at(0), before.at(0));
  EXPECT_EQ(after.at(1), before.at(1)) << "the incarnation";
  EXPECT_EQ(after.at(2), "2") << "the epoch";
  EXPECT_EQ(after.at(4), absl::StrCat(fd_store::kBegun));
}

TEST_F(SupervisorTest, PutBeforeBrokersDeathReachesNextBroker) {
  const auto daemon = StartReady();
  for (int i = 100; i < 120; ++i) {
    EXPECT_EQ(Ask(absl::StrCat("put-and-die ", i, " block", i)), "");
    EXPECT_EQ(Ask(absl::StrCat("text ", i)), absl::StrCat("block", i));
  }
  EXPECT_EQ(Facts().at(2), "21");
}

TEST_F(SupervisorTest, DroppedFdIsClosedReportedAndNotGivenAgain) {
  const auto daemon = StartReady();
  EXPECT_EQ(Ask("put 41 forty-one"), "OK");
  EXPECT_EQ(Ask("drop 41"), "OK");
  EXPECT_THAT(Ask("await dropped 7 41"), HasSubstr("dropped 7 41\n"));
  daemon->KillChild("berth-broker");
  EXPECT_THAT(Ask("held"), Not(HasSubstr("7 41")));
}

TEST_F(SupervisorTest, DropOfUnknownFdIsAnswered) {
  const auto daemon = StartReady();
  EXPECT_EQ(Ask("drop 99"), "OK");
  EXPECT_THAT(Ask("await dropped 7 99"), HasSubstr("dropped 7 99\n"));
}

TEST_F(SupervisorTest, BrokerBreakingProtocolIsReplaced) {
  auto daemon = StartReady();
  const UniqueFd broker = OpenPidfd(daemon->Child("berth-broker"));
  Ask("garbage");
  EXPECT_TRUE(WaitReadable(broker.get()));
  const std::vector<std::string> next = Facts();
  EXPECT_EQ(next.at(2), "2");
  EXPECT_EQ(next.at(4), absl::StrCat(fd_store::kBegunBeforeALoss)) << "what it put last may have been lost";
  // Only once: the puts of this broker are held.
  daemon->KillChild("berth-broker");
  EXPECT_EQ(Facts().at(4), absl::StrCat(fd_store::kBegun));
}

TEST_F(SupervisorTest, CleanStopIsShownOnStatePage) {
  const auto daemon = StartReady();
  const StatePage page = daemon->Page();
  EXPECT_EQ(page->devices[1].shutting_down, 0u);
  daemon->Signal(SIGTERM);
  EXPECT_EQ(daemon->AwaitExit(), 0);
  EXPECT_EQ(page->devices[0].shutting_down, 1u);
  EXPECT_EQ(page->devices[1].shutting_down, 1u);
  EXPECT_EQ(page->serving, 0u);
}

TEST_F(SupervisorTest, FiveBrokersThatNeverServeEndDaemon) {
  Daemon daemon(folder_, {{"BERTH_FAKE_BROKER", "fail"}});
  EXPECT_EQ(daemon.AwaitExit(), 1);
  EXPECT_THAT(daemon.Messages(),
              HasSubstr("5 brokers in a row ended before they served; the last with exit code 3"));
  EXPECT_FALSE(Exists("berthd.sock"));
}

TEST_F(SupervisorTest, FailedStartsBeforeAnyLeaseEndDaemon) {
  Daemon daemon(folder_, {{"BERTH_FAKE_BROKER", "starve"}});
  EXPECT_EQ(daemon.AwaitExit(), 1);
  EXPECT_THAT(daemon.Messages(), AllOf(HasSubstr("cannot start the broker: "), HasSubstr("RLIMIT_NOFILE is 10")));
  EXPECT_FALSE(Exists("berthd.sock"));
}

TEST_F(SupervisorTest, ConfigurationMistakeEndsDaemonAtFirstBroker) {
  Daemon daemon(folder_, {{"BERTH_FAKE_BROKER", "mistake"}});
  EXPECT_EQ(daemon.AwaitExit(), 1);
  EXPECT_THAT(daemon.Messages(), AllOf(HasSubstr("cannot start with this configuration"),
                                       Not(HasSubstr("restarting"))));
  EXPECT_FALSE(Exists("berthd.sock"));
}

TEST_F(SupervisorTest, StatePageNamesServingBrokerAndMemory) {
  const auto daemon = StartReady();
  const StatePage page = daemon->Page();
  const std::vector<std::string> facts = Facts();
  EXPECT_EQ(absl::StrCat(page->node.load()), facts.at(0));
  EXPECT_EQ(absl::StrCat(page->incarnation.load()), facts.at(1));
  EXPECT_EQ(page->epoch, 1u);
  EXPECT_EQ(page->serving, 1u);
  ASSERT_EQ(Ask("create 0"), "2097152");
  daemon->KillChild("berth-worker0");
  ASSERT_THAT(Ask("await up 0"), HasSubstr("up 0"));
  EXPECT_EQ(page->devices[0].generation, 1u) << "memory outlives the worker";
  EXPECT_EQ(page->devices[1].generation, 1u);
  EXPECT_EQ(page->devices[2].generation, 0u);
}

TEST_F(SupervisorTest, StatePageShowsNoBrokerAfterItsDeath) {
  Daemon daemon(folder_, {{"BERTH_FAKE_BROKER", "once"}});
  ASSERT_TRUE(daemon.AwaitReady());
  const StatePage page = daemon.Page();
  const uint64_t incarnation = page->incarnation;
  EXPECT_EQ(page->serving, 1u);
  daemon.KillChild("berth-broker");
  EXPECT_EQ(daemon.AwaitExit(), 1);
  EXPECT_EQ(page->serving, 0u);
  EXPECT_EQ(page->epoch, 6u);
  EXPECT_EQ(page->incarnation, incarnation);
}

TEST_F(SupervisorTest, OrphanedInventoryEndsAtOnce) {
  Daemon stray(folder_, {}, {"--role=inventory", "--backend=host", "--parent=1"});
  EXPECT_EQ(stray.AwaitExit(), 1);
  EXPECT_EQ(stray.Messages(), "berth-inventory: the supervisor has ended\n");
}

TEST_F(SupervisorTest, TooDeepFolderIsRejected) {
  Daemon daemon(absl::StrCat(folder_, "/", std::string(80, 'x')));
  EXPECT_EQ(daemon.AwaitExit(), 1);
  EXPECT_THAT(daemon.Messages(), AllOf(HasSubstr("97 bytes"), HasSubstr("at most 89")));
}

TEST_F(SupervisorTest, UncreatableFolderIsAnError) {
  Daemon daemon(absl::StrCat(folder_, "/a/b"));
  EXPECT_EQ(daemon.AwaitExit(), 1);
  EXPECT_THAT(daemon.Messages(), HasSubstr(absl::StrCat("mkdir ", folder_, "/a/b")));
}

TEST_F(SupervisorTest, NewFolderIsForOwnerAndGroup) {
  const std::string folder = folder_ + "/run";
  Daemon daemon(folder);
  ASSERT_TRUE(daemon.AwaitReady());
  struct stat info = {};
  ASSERT_EQ(::stat(folder.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07, 0u);
  EXPECT_EQ(info.st_uid, ::geteuid());
}

}  // namespace
}  // namespace berth
