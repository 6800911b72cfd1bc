// Replacement of a supervisor that has ended, with real processes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/os/process.h"
#include "common/os/unique_fd.h"
#include "common/wire/state_page.h"
#include "daemon/supervisor/testing/supervisor_test_daemon.h"

namespace berth {
namespace {

using ::testing::HasSubstr;

class HandoverTest : public SupervisorTest {
 protected:
  // Returns the pid in the folder's lock file, which is the supervisor's.
  int SupervisorPid() const {
    std::ifstream file(folder_ + "/berthd.lock");
    int pid = 0;
    file >> pid;
    return pid;
  }

  // Kills the supervisor. Returns the pid of its replacement.
  int KillSupervisor() {
    const int before = SupervisorPid();
    EXPECT_GT(before, 1);
    if (before <= 1) return before;
    const UniqueFd pidfd = OpenPidfd(before);
    ::kill(before, SIGKILL);
    EXPECT_TRUE(WaitReadable(pidfd.get()));
    // A broker that answers has handed everything over.
    Ask("facts");
    for (int i = 0; i < kPatienceMs && SupervisorPid() == before; ++i) ::poll(nullptr, 0, 1);
    EXPECT_NE(SupervisorPid(), before);
    return SupervisorPid();
  }

  // Ends the daemon as an operator does, whichever process is its supervisor now.
  void Stop() {
    const UniqueFd pidfd = OpenPidfd(SupervisorPid());
    ::kill(SupervisorPid(), SIGTERM);
    EXPECT_TRUE(WaitReadable(pidfd.get()));
    EXPECT_FALSE(Exists("berthd.sock"));
  }
};

TEST_F(HandoverTest, KilledSupervisorIsReplacedWithItsState) {
  const auto daemon = StartReady();
  const std::vector<std::string> before = Facts();
  const StatePage page = daemon->Page();
  EXPECT_EQ(Ask("put 41 forty-one"), "OK");
  const UniqueFd broker = OpenPidfd(daemon->Child("berth-broker"));
  KillSupervisor();
  EXPECT_EQ(Facts(), before) << "the same broker";
  EXPECT_EQ(page->serving, 1u);
  EXPECT_EQ(Ask("put 42 forty-two"), "OK");
  EXPECT_EQ(Ask("create 0"), "2097152") << "the same worker";
  EXPECT_FALSE(IsGone(broker.get()));
  Stop();
  EXPECT_TRUE(IsGone(broker.get()));
}

TEST_F(HandoverTest, BrokerKilledAfterwardsIsReplacedWithItsState) {
  const auto daemon = StartReady();
  const std::vector<std::string> before = Facts();
  EXPECT_EQ(Ask("put 41 forty-one"), "OK");
  int broker = daemon->Child("berth-broker");
  for (int round = 1; round <= 3; ++round) {
    KillSupervisor();
    const UniqueFd pidfd = OpenPidfd(broker);
    ::kill(broker, SIGKILL);
    ASSERT_TRUE(WaitReadable(pidfd.get()));
    EXPECT_EQ(Ask("text 41"), "forty-one");
    EXPECT_EQ(Ask("held"), "1 1\n1 2\n1 3\n1 4\n1 5\n2 0\n3 0\n7 41\n8 0\n8 1\n");
    EXPECT_EQ(Ask("create 1"), "2097152");
    EXPECT_EQ(Facts().at(0), before.at(0));
    EXPECT_EQ(Facts().at(2), absl::StrCat(1 + round)) << "the epoch";
    ASSERT_TRUE(absl::SimpleAtoi(Ask("pid"), &broker));
  }
  Stop();
}

TEST_F(HandoverTest, FolderStaysLocked) {
  const auto daemon = StartReady();
  const int supervisor = KillSupervisor();
  Daemon second(folder_);
  EXPECT_EQ(second.AwaitExit(), 1);
  EXPECT_THAT(second.Messages(), HasSubstr(absl::StrCat("pid ", supervisor)));
  Stop();
}

TEST_F(HandoverTest, NextSupervisorWatchesWorkers) {
  const auto daemon = StartReady();
  EXPECT_EQ(Ask("create 0"), "2097152");
  const int worker = daemon->Child("berth-worker0");
  KillSupervisor();
  ::kill(worker, SIGKILL);
  EXPECT_THAT(Ask("await up 0"), HasSubstr("up 0"));
  EXPECT_EQ(Ask("create 0"), "2097152");
  Stop();
}

TEST_F(HandoverTest, WorkerEndingWithSupervisorIsReplaced) {
  const auto daemon = StartReady();
  EXPECT_EQ(Ask("create 0"), "2097152");
  const UniqueFd worker(static_cast<int>(::syscall(SYS_pidfd_open, daemon->Child("berth-worker0"), 0)));
  // The stopped supervisor does not notice the worker's end.
  ::kill(SupervisorPid(), SIGSTOP);
  daemon->KillChild("berth-worker0");
  KillSupervisor();
  EXPECT_THAT(Ask("await up 0"), HasSubstr("up 0"));
  EXPECT_EQ(Ask("create 0"), "2097152");
  EXPECT_TRUE(IsGone(worker.get()));
  Stop();
}

TEST_F(HandoverTest, NextSupervisorDoesPendingRequests) {
  const auto daemon = StartReady();
  EXPECT_EQ(Ask("put 41 forty-one"), "OK");
  ::kill(SupervisorPid(), SIGSTOP);
  EXPECT_EQ(Ask("drop 41"), "OK");
  EXPECT_EQ(Ask("command drain 1"), "OK");
  EXPECT_EQ(Ask("put 42 forty-two"), "OK");
  KillSupervisor();
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

TEST_F(HandoverTest, StoppedAndDrainedDevicesStaySo) {
  Daemon daemon(folder_, {{"BERTH_FAKE_STALE", "1"}});
  ASSERT_TRUE(daemon.AwaitReady());
  EXPECT_EQ(Ask("command drain 0"), "OK");
  for (int i = 0; i < kPatienceMs && Ask("status 0").find("drained") == std::string::npos; ++i) {
    ::poll(nullptr, 0, 1);
  }
  const std::string stopped = Ask("status 1");
  EXPECT_THAT(stopped, HasSubstr("does not clear memory"));
  KillSupervisor();
  Ask("die");
  EXPECT_EQ(Ask("status 1"), stopped);
  EXPECT_THAT(Ask("status 0"), HasSubstr("drained: ordered to drain"));
  Stop();
}

TEST_F(HandoverTest, DaemonOutlivesManySupervisors) {
  const auto daemon = StartReady();
  EXPECT_EQ(Ask("put 41 forty-one"), "OK");
  for (int i = 0; i < 20; ++i) KillSupervisor();
  Ask("die");
  EXPECT_EQ(Ask("text 41"), "forty-one");
  Stop();
}

TEST_F(HandoverTest, ServiceManagerIsNotifiedOfEachSupervisor) {
  const std::string path = folder_ + "/notify";
  const UniqueFd manager(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(manager.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  const auto notified = [&] {
    while (true) {
      char text[256];
      const ssize_t got = WaitReadable(manager.get()) ? ::read(manager.get(), text, sizeof(text)) : 0;
      const std::string message(text, got > 0 ? static_cast<size_t>(got) : 0);
      // tests/e2e/recovery/service_manager_fd_store_test covers the fds to store.
      if (message.rfind("FDSTORE", 0) != 0) return message;
    }
  };
  Daemon daemon(folder_, {{"NOTIFY_SOCKET", path}});
  ASSERT_TRUE(daemon.AwaitReady());
  EXPECT_EQ(notified(), "READY=1");
  const int next = KillSupervisor();
  EXPECT_EQ(notified(), absl::StrCat("MAINPID=", next));
  Stop();
  EXPECT_EQ(notified(), "STOPPING=1");
}

// Returns the file that the process runs.
std::string ProgramOf(int pid) {
  struct stat info = {};
  ::stat(absl::StrCat("/proc/", pid, "/exe").c_str(), &info);
  return absl::StrCat(info.st_dev, ":", info.st_ino);
}

class UpgradeTest : public HandoverTest {
 protected:
  UpgradeTest() { Install(); }

  // Installs a copy of the daemon in place of the current file.
  void Install() {
    std::filesystem::copy_file("/proc/self/exe", program_ + ".new");
    std::filesystem::rename(program_ + ".new", program_);
  }
  std::string Installed() const {
    struct stat info = {};
    ::stat(program_.c_str(), &info);
    return absl::StrCat(info.st_dev, ":", info.st_ino);
  }

  const std::string program_ = folder_ + "/berthd";
};

TEST_F(UpgradeTest, EachProcessIsReplacedWithoutLoss) {
  Daemon daemon(folder_, {}, kDefaultFlags, program_);
  ASSERT_TRUE(daemon.AwaitReady());
  EXPECT_EQ(Ask("put 41 forty-one"), "OK");
  EXPECT_EQ(Ask("create 0"), "2097152");
  EXPECT_EQ(Ask("create 1"), "2097152");
  const std::string before = ProgramOf(daemon.pid());
  const std::vector<std::string> facts = Facts();
  Install();
  ASSERT_NE(Installed(), before);
  EXPECT_EQ(Ask("command upgrade 0"), "OK");
  EXPECT_TRUE(Becomes([&] { return ProgramOf(daemon.pid()) == Installed(); })) << "the same process";
  for (const char* const name : {"berth-broker", "berth-worker0", "berth-worker1"}) {
    EXPECT_TRUE(Becomes([&] { return ProgramOf(daemon.Child(name)) == Installed(); })) << name;
  }
  EXPECT_EQ(Ask("text 41"), "forty-one");
  EXPECT_EQ(Facts().at(0), facts.at(0));
  EXPECT_EQ(Facts().at(2), "2") << "the epoch";
  EXPECT_TRUE(Becomes([&] { return Ask("create 0") == "2097152" && Ask("create 1") == "2097152"; }));
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.AwaitExit(), 0);
}

TEST_F(UpgradeTest, MissingProgramLeavesEverything) {
  Daemon daemon(folder_, {}, kDefaultFlags, program_);
  ASSERT_TRUE(daemon.AwaitReady());
  EXPECT_EQ(Ask("put 41 forty-one"), "OK");
  std::filesystem::remove(program_);
  EXPECT_EQ(Ask("command upgrade 0"), "OK");
  EXPECT_TRUE(daemon.AwaitMessage("upgrade failed: No such file"));
  EXPECT_EQ(Ask("create 1"), "2097152");
  EXPECT_EQ(Facts().at(2), "1");
  daemon.Signal(SIGTERM);
  EXPECT_EQ(daemon.AwaitExit(), 0);
}

TEST_F(UpgradeTest, ForeignProgramIsReplacedByBrokersOwn) {
  Daemon daemon(folder_, {}, kDefaultFlags, program_);
  ASSERT_TRUE(daemon.AwaitReady());
  EXPECT_EQ(Ask("put 41 forty-one"), "OK");
  const int before = SupervisorPid();
  std::filesystem::remove(program_);
  std::filesystem::copy_file("/bin/false", program_);
  EXPECT_EQ(Ask("command upgrade 0"), "OK");
  EXPECT_EQ(daemon.AwaitExit(), 1);
  EXPECT_TRUE(Becomes([&] { return SupervisorPid() != before; }));
  EXPECT_EQ(Facts().at(2), "1") << "the same broker";
  Ask("die");
  EXPECT_EQ(Ask("text 41"), "forty-one");
  Stop();
}

TEST_F(HandoverTest, SimultaneousDeathLeavesNoProcess) {
  const auto daemon = StartReady();
  const std::vector<UniqueFd> children = daemon->ChildrenPidfds();
  ::kill(SupervisorPid(), SIGSTOP);
  daemon->KillChild("berth-broker");
  ::kill(SupervisorPid(), SIGKILL);
  for (const UniqueFd& child : children) EXPECT_TRUE(WaitReadable(child.get()));
  const auto next = StartReady();
  EXPECT_EQ(Facts().at(2), "2") << "the epoch goes on";
}

}  // namespace
}  // namespace berth
