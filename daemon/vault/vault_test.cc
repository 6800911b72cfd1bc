// Tests of the vault with real processes: this binary is also the daemon, with the real vault, worker and
// inventory roles and a broker that does what the test tells it.

#include "daemon/vault/vault.h"

#include <errno.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/process.h"
#include "common/state_page.h"
#include "daemon/device/worker_channel.h"
#include "daemon/options.h"
#include "daemon/roles.h"
#include "daemon/vault/child_process.h"
#include "daemon/vault/fake_broker.h"

namespace berth {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kPatienceMs = 20'000;

bool WaitReadable(int fd) {
  pollfd entry = {.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, kPatienceMs) == 1;
}

std::string ReadToEnd(int fd) {
  std::string text;
  char buffer[4096];
  while (WaitReadable(fd)) {
    const ssize_t got = ::read(fd, buffer, sizeof(buffer));
    if (got <= 0) break;
    text.append(buffer, static_cast<size_t>(got));
  }
  return text;
}

UniqueFd OpenPidfd(int pid) { return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))); }

// A daemon in a process of its own.
class Daemon {
 public:
  explicit Daemon(const std::string& folder, const std::map<std::string, std::string>& environment = {},
                  std::vector<std::string> flags = {"--role=vault", "--backend=host", "--host-devices=2",
                                                    "--host-bytes=64MiB"}) {
    int ready[2];
    int messages[2];
    if (::pipe2(ready, O_CLOEXEC) < 0 || ::pipe2(messages, O_CLOEXEC) < 0) abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
      ::dup2(messages[1], STDERR_FILENO);
      ::fcntl(ready[1], F_SETFD, 0);
      flags.insert(flags.begin(), "berthd");
      flags.push_back(absl::StrCat("--folder=", folder));
      flags.push_back(absl::StrCat("--ready-fd=", ready[1]));
      std::vector<char*> argv;
      for (std::string& flag : flags) argv.push_back(flag.data());
      argv.push_back(nullptr);
      ::execv("/proc/self/exe", argv.data());
      ::_exit(125);
    }
    ::close(ready[1]);
    ::close(messages[1]);
    ready_.reset(ready[0]);
    messages_.reset(messages[0]);
    pidfd_ = OpenPidfd(pid_);
  }
  ~Daemon() {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
  }

  bool AwaitReady() { return ReadToEnd(ready_.get()) == "ready\n"; }
  int pid() const { return pid_; }
  void Signal(int number) const { ::kill(pid_, number); }

  // Waits for the end. Returns the exit code, -1 for a signal.
  int AwaitExit() {
    if (!WaitReadable(pidfd_.get())) return -2;
    int status = 0;
    ::waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  // All that the daemon said. Requires: it and its children have ended.
  std::string Messages() { return ReadToEnd(messages_.get()); }

  std::vector<int> Children() const {
    std::ifstream file(absl::StrCat("/proc/", pid_, "/task/", pid_, "/children"));
    std::vector<int> children;
    for (int pid; file >> pid;) children.push_back(pid);
    return children;
  }
  // Pidfds of all its children.
  std::vector<UniqueFd> ChildrenPidfds() const {
    std::vector<UniqueFd> pidfds;
    for (const int pid : Children()) pidfds.push_back(OpenPidfd(pid));
    return pidfds;
  }
  // The pid of the child of that name, 0 if there is none. A child has its name once it has answered something.
  int Child(const std::string& name) const {
    for (const int pid : Children()) {
      if (ProcessName(pid) == name) return pid;
    }
    return 0;
  }

  // A mapping of its state page.
  StatePage Page() const {
    for (const auto& entry : std::filesystem::directory_iterator(absl::StrCat("/proc/", pid_, "/fd"))) {
      if (!absl::StrContains(std::filesystem::read_symlink(entry).string(), "memfd:berth-state")) continue;
      const UniqueFd fd(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
      return *StatePage::MapReadOnly(fd.get());
    }
    abort();
  }

  // Kills the child of that name and waits until it is gone.
  void KillChild(const std::string& name) const {
    const int pid = Child(name);
    ASSERT_NE(pid, 0) << name;
    const UniqueFd pidfd = OpenPidfd(pid);
    ::kill(pid, SIGKILL);
    ASSERT_TRUE(WaitReadable(pidfd.get()));
  }

 private:
  int pid_;
  UniqueFd pidfd_;
  UniqueFd ready_;
  UniqueFd messages_;
};

class VaultTest : public ::testing::Test {
 protected:
  VaultTest() {
    folder_ = "/tmp/berth" + std::string(6, 'X');
    ::mkdtemp(folder_.data());
  }
  ~VaultTest() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<Daemon> StartReady() {
    auto daemon = std::make_unique<Daemon>(folder_);
    EXPECT_TRUE(daemon->AwaitReady());
    return daemon;
  }

  // Connects to the socket; -1 and errno if that fails.
  UniqueFd Connect(const std::string& name, int type = SOCK_STREAM) const {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    const std::string path = absl::StrCat(folder_, "/", name);
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) < 0) socket.reset();
    return socket;
  }

  // What the broker answers; a broker that is just being started answers when it serves.
  std::string Ask(const std::string& command) const {
    const UniqueFd socket = Connect("berthd.sock");
    if (!socket || ::write(socket.get(), command.data(), command.size()) < 0) return "no broker";
    return ReadToEnd(socket.get());
  }
  std::vector<std::string> Facts() const { return absl::StrSplit(Ask("facts"), ' '); }

  bool Exists(const std::string& name) const {
    return std::filesystem::exists(absl::StrCat(folder_, "/", name));
  }

  std::string folder_;
};

TEST_F(VaultTest, TheBrokerIsGivenTheSocketsThePageTheDevicesAndAWorkerEach) {
  const auto daemon = StartReady();
  EXPECT_EQ(Ask("held"), "1 1\n1 2\n1 3\n2 0\n3 0\n9 0\n9 1\n");
  EXPECT_EQ(Facts().at(3), "2");
  EXPECT_EQ(Ask("create 0"), "2097152");
  EXPECT_EQ(Ask("create 1"), "2097152");
}

TEST_F(VaultTest, TheSocketsAreOpenToWhomTheyShallBe) {
  const auto daemon = StartReady();
  const auto mode = [&](const std::string& name) {
    struct stat info = {};
    ::stat(absl::StrCat(folder_, "/", name).c_str(), &info);
    return info.st_mode & 0777;
  };
  EXPECT_EQ(mode("berthd.sock"), 0660);
  EXPECT_EQ(mode("attach.sock"), 0660);
  EXPECT_EQ(mode("admin.sock"), 0600);
  EXPECT_TRUE(Connect("admin.sock"));
  EXPECT_TRUE(Connect("attach.sock", SOCK_SEQPACKET));
}

TEST_F(VaultTest, SigtermStopsItInUnderASecondAndLeavesNothing) {
  auto daemon = StartReady();
  const UniqueFd client = Connect("attach.sock", SOCK_SEQPACKET);
  const std::vector<UniqueFd> children = daemon->ChildrenPidfds();
  ASSERT_EQ(children.size(), 3);
  const auto start = steady_clock::now();
  daemon->Signal(SIGTERM);
  EXPECT_EQ(daemon->AwaitExit(), 0);
  EXPECT_LT(steady_clock::now() - start, seconds(1));
  for (const UniqueFd& child : children) EXPECT_TRUE(IsGone(child.get()));
  EXPECT_FALSE(Exists("berthd.sock"));
  EXPECT_FALSE(Exists("admin.sock"));
  EXPECT_FALSE(Exists("attach.sock"));
  EXPECT_EQ(daemon->Messages(), "");
}

TEST_F(VaultTest, ABrokerThatDoesNotStopIsKilledWithinTheSecond) {
  Daemon daemon(folder_, {{"BERTH_FAKE_BROKER", "deaf"}});
  ASSERT_TRUE(daemon.AwaitReady());
  const auto start = steady_clock::now();
  daemon.Signal(SIGINT);
  EXPECT_EQ(daemon.AwaitExit(), 0);
  EXPECT_LT(steady_clock::now() - start, seconds(1));
  EXPECT_THAT(daemon.Messages(), HasSubstr("the broker did not stop in 500 ms"));
}

TEST_F(VaultTest, ASecondDaemonOnTheFolderIsRefusedAndTouchesNothing) {
  const auto first = StartReady();
  Daemon second(folder_);
  EXPECT_EQ(second.AwaitExit(), 1);
  EXPECT_THAT(second.Messages(), AllOf(HasSubstr(folder_), HasSubstr(absl::StrCat("pid ", first->pid()))));
  EXPECT_EQ(Facts().at(2), "1");
  EXPECT_TRUE(Exists("admin.sock"));
}

TEST_F(VaultTest, AKilledDaemonsSocketsAreTakenOverAndTheNodeKeepsItsId) {
  auto first = StartReady();
  const std::vector<std::string> before = Facts();
  const std::vector<UniqueFd> children = first->ChildrenPidfds();
  first->Signal(SIGKILL);
  EXPECT_EQ(first->AwaitExit(), -1);
  // The kernel ends the children with their parent.
  for (const UniqueFd& child : children) EXPECT_TRUE(WaitReadable(child.get()));
  EXPECT_TRUE(Exists("berthd.sock"));
  const auto second = StartReady();
  EXPECT_EQ(Facts().at(0), before.at(0));
  EXPECT_NE(Facts().at(1), before.at(1));
}

TEST_F(VaultTest, AKilledBrokerIsFollowedByOneThatIsGivenEverything) {
  const auto daemon = StartReady();
  const std::vector<std::string> before = Facts();
  EXPECT_EQ(Ask("put 41 forty-one"), "OK");
  daemon->KillChild("berth-broker");
  EXPECT_EQ(Ask("text 41"), "forty-one");
  EXPECT_EQ(Ask("held"), "1 1\n1 2\n1 3\n2 0\n3 0\n8 41\n9 0\n9 1\n");
  EXPECT_EQ(Ask("create 0"), "2097152");
  const std::vector<std::string> after = Facts();
  EXPECT_EQ(after.at(0), before.at(0));
  EXPECT_NE(after.at(1), before.at(1)) << "the incarnation";
  EXPECT_EQ(after.at(2), "2") << "the epoch";
}

TEST_F(VaultTest, WhatABrokerPutRightBeforeItsDeathIsGivenToTheNext) {
  const auto daemon = StartReady();
  for (int i = 100; i < 120; ++i) {
    EXPECT_EQ(Ask(absl::StrCat("put-and-die ", i, " block", i)), "");
    EXPECT_EQ(Ask(absl::StrCat("text ", i)), absl::StrCat("block", i));
  }
  EXPECT_EQ(Facts().at(2), "21");
}

TEST_F(VaultTest, WhatIsDroppedIsClosedSaidAndNotGivenAgain) {
  const auto daemon = StartReady();
  EXPECT_EQ(Ask("put 41 forty-one"), "OK");
  EXPECT_EQ(Ask("drop 41"), "OK");
  EXPECT_THAT(Ask("await dropped 8 41"), HasSubstr("dropped 8 41\n"));
  daemon->KillChild("berth-broker");
  EXPECT_THAT(Ask("held"), Not(HasSubstr("8 41")));
}

TEST_F(VaultTest, DroppingWhatIsNotHeldIsAnsweredToo) {
  const auto daemon = StartReady();
  EXPECT_EQ(Ask("drop 99"), "OK");
  EXPECT_THAT(Ask("await dropped 8 99"), HasSubstr("dropped 8 99\n"));
}

TEST_F(VaultTest, ABrokerThatBreaksTheProtocolIsReplaced) {
  auto daemon = StartReady();
  const UniqueFd broker = OpenPidfd(daemon->Child("berth-broker"));
  Ask("garbage");
  EXPECT_TRUE(WaitReadable(broker.get()));
  EXPECT_EQ(Facts().at(2), "2");
}

TEST_F(VaultTest, AKilledWorkerIsSaidToBeGoneAndStartedAgain) {
  const auto daemon = StartReady();
  ASSERT_EQ(Ask("create 1"), "2097152");
  daemon->KillChild("berth-worker1");
  EXPECT_THAT(Ask("await up 1"), HasSubstr("down 1\nup 1\n"));
  EXPECT_EQ(Ask("create 1"), "2097152");
  EXPECT_EQ(Ask("create 0"), "2097152");
}

TEST_F(VaultTest, TheFourthDeathOfAWorkerStopsItsDeviceAlone) {
  const auto daemon = StartReady();
  std::string seen;
  for (int death = 1; death <= 3; ++death) {
    ASSERT_EQ(Ask("create 0"), "2097152");
    daemon->KillChild("berth-worker0");
    seen += "down 0\nup 0\n";
    ASSERT_EQ(Ask(absl::StrCat("await ", seen)), seen);
  }
  ASSERT_EQ(Ask("create 0"), "2097152");
  daemon->KillChild("berth-worker0");
  EXPECT_EQ(Ask(absl::StrCat("await ", seen, "down 0 stopped\n")), absl::StrCat(seen, "down 0 stopped\n"));
  EXPECT_EQ(daemon->Child("berth-worker0"), 0);
  EXPECT_EQ(Ask("create 1"), "2097152");
  daemon->KillChild("berth-broker");
  EXPECT_EQ(Ask("await down"), "down 0 stopped\n") << "the next broker is told as well";
}

TEST_F(VaultTest, AStoppedDeviceIsEnabledAgainWithItsRestartsForgotten) {
  const auto daemon = StartReady();
  std::string seen;
  for (int death = 1; death <= 4; ++death) {
    ASSERT_EQ(Ask("create 0"), "2097152");
    daemon->KillChild("berth-worker0");
    seen += death < 4 ? "down 0\nup 0\n" : "down 0 stopped\n";
    ASSERT_EQ(Ask(absl::StrCat("await ", seen)), seen);
  }
  EXPECT_EQ(Ask("status 0"), "left 0, generation 1: the worker ended: signal 9");
  EXPECT_EQ(Ask("order enable 0"), "OK");
  EXPECT_EQ(Ask(absl::StrCat("await ", seen, "up 0\n")), seen + "up 0\n");
  EXPECT_EQ(Ask("create 0"), "2097152");
  EXPECT_EQ(Ask("status 0"), "left 3, generation 1: the worker ended: signal 9");
  // Where it is not stopped there is nothing to enable.
  EXPECT_EQ(Ask("order enable 0"), "OK");
  EXPECT_EQ(Ask("order enable 63"), "OK");
  EXPECT_EQ(Ask("create 0"), "2097152");
}

TEST_F(VaultTest, AnOrderedRestartDoesNotCountAndAKillDoes) {
  const auto daemon = StartReady();
  std::string seen;
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(Ask("create 0"), "2097152");
    EXPECT_EQ(Ask("order restart 0"), "OK");
    seen += "down 0\nup 0\n";
    ASSERT_EQ(Ask(absl::StrCat("await ", seen)), seen);
  }
  EXPECT_EQ(Ask("status 0"), "left 3, generation 1: ordered to restart");
  EXPECT_EQ(Ask("order kill 0"), "OK");
  seen += "down 0\nup 0\n";
  ASSERT_EQ(Ask(absl::StrCat("await ", seen)), seen);
  EXPECT_EQ(Ask("status 0"), "left 2, generation 1: ordered to kill");
  EXPECT_EQ(Ask("create 1"), "2097152");
}

TEST_F(VaultTest, AResetMovesTheGenerationBeforeTheNextWorkerIsThere) {
  const auto daemon = StartReady();
  const StatePage page = daemon->Page();
  ASSERT_EQ(Ask("create 0"), "2097152");
  EXPECT_EQ(Ask("order reset 0"), "OK");
  ASSERT_THAT(Ask("await up 0"), HasSubstr("down 0\nup 0\n"));
  EXPECT_EQ(page->devices[0].generation, 2u);
  EXPECT_EQ(page->devices[1].generation, 1u);
  EXPECT_EQ(Ask("status 0"), "left 3, generation 2: ordered to reset");
  daemon->KillChild("berth-broker");
  EXPECT_EQ(Ask("status 0"), "left 3, generation 2: ordered to reset") << "the next broker is told as well";
}

TEST_F(VaultTest, ADroppedDeviceIsSaidToBeGoneAndStaysSo) {
  const auto daemon = StartReady();
  const StatePage page = daemon->Page();
  ASSERT_EQ(Ask("create 0"), "2097152");
  EXPECT_EQ(Ask("order drop 0"), "OK");
  EXPECT_THAT(Ask("await down 0 stopped"), HasSubstr("down 0 stopped"));
  EXPECT_EQ(page->devices[0].dropped, 1u);
  EXPECT_EQ(page->devices[1].dropped, 0u);
  EXPECT_EQ(Ask("order enable 0"), "OK");
  EXPECT_EQ(Ask("status 0"), "left 0, generation 1, dropped: ordered to drop");
  EXPECT_EQ(daemon->Child("berth-worker0"), 0);
  EXPECT_EQ(Ask("create 1"), "2097152");
}

TEST_F(VaultTest, ALostDevicesGenerationMovesAndItStaysStoppedUntilEnabled) {
  Daemon daemon(folder_, {{"BERTH_FAKE_WORKER", "13"}});
  ASSERT_TRUE(daemon.AwaitReady());
  const StatePage page = daemon.Page();
  Ask("create 1");
  EXPECT_THAT(Ask("await down 1 stopped"), HasSubstr("down 1 stopped"));
  EXPECT_EQ(page->devices[1].generation, 2u);
  EXPECT_EQ(page->devices[1].dropped, 0u) << "the node still has it";
  EXPECT_EQ(Ask("status 1"), "left 0, generation 2: the driver says that the device is lost");
  EXPECT_EQ(Ask("create 0"), "2097152");
  EXPECT_EQ(Ask("order enable 1"), "OK");
  EXPECT_THAT(Ask("await up 1"), HasSubstr("up 1"));
  EXPECT_EQ(page->devices[1].generation, 2u);
}

TEST_F(VaultTest, ALostDeviceThatTheNodeHasNoMoreIsDropped) {
  Daemon daemon(folder_, {{"BERTH_FAKE_WORKER", "13"}, {"BERTH_FAKE_INVENTORY", "1"}});
  ASSERT_TRUE(daemon.AwaitReady());
  const StatePage page = daemon.Page();
  Ask("create 1");
  // Said a second time, when somebody has looked.
  EXPECT_THAT(Ask("await down 1 stopped\ndown 1 stopped\n"), HasSubstr("down 1 stopped"));
  EXPECT_EQ(page->devices[1].dropped, 1u);
  EXPECT_EQ(page->devices[0].dropped, 0u);
  EXPECT_EQ(Ask("status 1"), "left 0, generation 2, dropped: the node has this device no more");
  EXPECT_EQ(Ask("create 0"), "2097152");
}

TEST_F(VaultTest, AWorkerThatSigkillDoesNotEndIsAbandonedAndItsDeviceComesBackAfterIt) {
  const auto daemon = StartReady();
  ASSERT_EQ(Ask("create 0"), "2097152");
  const int worker = daemon->Child("berth-worker0");
  // As one that is stuck in the driver: it is held on its way out until it is let go.
  if (::ptrace(PTRACE_SEIZE, worker, nullptr, PTRACE_O_TRACEEXIT) < 0) {
    GTEST_SKIP() << "no right to trace: " << strerror(errno);
  }
  const UniqueFd pidfd = OpenPidfd(worker);
  EXPECT_EQ(Ask("order kill 0"), "OK");
  int stopped = 0;
  ASSERT_EQ(::waitpid(worker, &stopped, __WALL), worker);
  ASSERT_TRUE(WIFSTOPPED(stopped));
  EXPECT_EQ(Ask("await down 0 abandoned\n"), "down 0 abandoned\n");
  EXPECT_THAT(Ask("status 0"), HasSubstr("ordered to kill; it did not end within 2 s of SIGKILL"));
  EXPECT_FALSE(IsGone(pidfd.get()));
  EXPECT_EQ(Ask("create 1"), "2097152") << "nobody else is touched";
  // There is no other worker while it is there, and a new broker hears of it.
  EXPECT_EQ(Ask("order enable 0"), "OK");
  daemon->KillChild("berth-broker");
  EXPECT_EQ(Ask("await down 0"), "down 0 abandoned\n");
  EXPECT_THAT(Ask("held"), Not(HasSubstr("9 0\n")));
  ASSERT_EQ(::ptrace(PTRACE_DETACH, worker, nullptr, nullptr), 0);
  EXPECT_EQ(Ask("await down 0 stopped\n"), "down 0 abandoned\ndown 0 stopped\n");
  EXPECT_EQ(Ask("order enable 0"), "OK");
  EXPECT_THAT(Ask("await up 0"), HasSubstr("up 0"));
  EXPECT_EQ(Ask("create 0"), "2097152");
}

TEST_F(VaultTest, ACleanStopSaysSoOnTheStatePage) {
  const auto daemon = StartReady();
  const StatePage page = daemon->Page();
  EXPECT_EQ(page->devices[1].shutting_down, 0u);
  daemon->Signal(SIGTERM);
  EXPECT_EQ(daemon->AwaitExit(), 0);
  EXPECT_EQ(page->devices[0].shutting_down, 1u);
  EXPECT_EQ(page->devices[1].shutting_down, 1u);
  EXPECT_EQ(page->serving, 0u);
}

TEST_F(VaultTest, FiveBrokersThatNeverServeEndTheDaemon) {
  Daemon daemon(folder_, {{"BERTH_FAKE_BROKER", "fail"}});
  EXPECT_EQ(daemon.AwaitExit(), 1);
  EXPECT_THAT(daemon.Messages(),
              HasSubstr("5 brokers in a row ended before they served; the last with exit code 3"));
  EXPECT_FALSE(Exists("berthd.sock"));
}

TEST_F(VaultTest, TheStatePageSaysWhoServesAndWhatTheMemoryIsOf) {
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

TEST_F(VaultTest, TheStatePageSaysThatNobodyServesAfterABrokersDeath) {
  Daemon daemon(folder_, {{"BERTH_FAKE_BROKER", "once"}});
  ASSERT_TRUE(daemon.AwaitReady());
  const StatePage page = daemon.Page();
  const uint64_t incarnation = page->incarnation;
  EXPECT_EQ(page->serving, 1u);
  daemon.KillChild("berth-broker");
  EXPECT_EQ(daemon.AwaitExit(), 1);
  EXPECT_EQ(page->serving, 0u);
  EXPECT_EQ(page->epoch, 6u);
  EXPECT_NE(page->incarnation, incarnation);
}

TEST_F(VaultTest, AChildWhoseParentIsGoneEndsAtOnce) {
  Daemon stray(folder_, {},
               {"--role=worker", "--device=0", "--backend=host", "--host-bytes=2MiB", "--parent=1"});
  EXPECT_EQ(stray.AwaitExit(), 1);
  EXPECT_EQ(stray.Messages(), "berth-worker0: the vault has ended\n");
}

TEST_F(VaultTest, AFolderTooDeepForItsSocketsIsRefused) {
  Daemon daemon(absl::StrCat(folder_, "/", std::string(80, 'x')));
  EXPECT_EQ(daemon.AwaitExit(), 1);
  EXPECT_THAT(daemon.Messages(), AllOf(HasSubstr("97 bytes"), HasSubstr("at most 90")));
}

TEST_F(VaultTest, AFolderThatCannotBeMadeIsAnError) {
  Daemon daemon(absl::StrCat(folder_, "/a/b"));
  EXPECT_EQ(daemon.AwaitExit(), 1);
  EXPECT_THAT(daemon.Messages(), HasSubstr(absl::StrCat("mkdir ", folder_, "/a/b")));
}

TEST_F(VaultTest, ANewFolderIsForItsOwnerAndGroupAlone) {
  const std::string folder = folder_ + "/run";
  Daemon daemon(folder);
  ASSERT_TRUE(daemon.AwaitReady());
  struct stat info = {};
  ASSERT_EQ(::stat(folder.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07, 0u);
  EXPECT_EQ(info.st_uid, ::geteuid());
}

}  // namespace

// Has the worker behind `socket` make a block of 2 MiB; says the size of what came.
std::string CreateBlock(int socket) {
  absl::StatusOr<UniqueFd> copy = DuplicateFd(socket);
  if (!copy.ok()) return copy.status().ToString();
  WorkerChannel worker(*std::move(copy));
  if (const absl::Status sent = worker.SendCreate(BlockId(7), MiB(2)); !sent.ok()) return sent.ToString();
  WaitReadable(worker.fd());
  absl::StatusOr<WorkerReply> reply = worker.Read();
  if (!reply.ok()) return reply.status().ToString();
  const auto* created = std::get_if<CreatedBlock>(&*reply);
  struct stat info = {};
  if (created == nullptr || !created->fd.ok() || ::fstat(created->fd->get(), &info) < 0) return "no block";
  return absl::StrCat(info.st_size);
}

// A worker of device 1 that ends with $BERTH_FAKE_WORKER at its first request.
int RunFakeWorker(const Options& options, const char* code) {
  if (!BecomeChild("berth-worker1", options.parent).ok()) return 1;
  WaitReadable(kChildFd);
  return atoi(code);
}

// The node's devices; with $BERTH_FAKE_INVENTORY device 1 is gone once the daemon serves.
int RunInventory(Options options) {
  if (getenv("BERTH_FAKE_INVENTORY") != nullptr && std::filesystem::exists(options.folder + "/berthd.sock")) {
    options.host_devices = 1;
  }
  return RunInventoryRole(options);
}

}  // namespace berth

int main(int argc, char** argv) {
  berth::Options options;
  // The daemon's roles, when the vault or a test starts them.
  if (argc > 1 &&
      absl::StrContains(absl::StrJoin(std::vector<std::string>(argv + 1, argv + argc), " "), "--role=")) {
    if (const auto code = berth::ParseOptions(argc, argv, &options); code.has_value()) return *code;
    switch (options.role) {
      case berth::Role::kVault:
        return berth::RunVaultRole(options);
      case berth::Role::kWorker:
        if (const char* const code = getenv("BERTH_FAKE_WORKER"); code != nullptr && options.device == 1) {
          return berth::RunFakeWorker(options, code);
        }
        return berth::RunWorkerRole(options);
      case berth::Role::kInventory:
        return berth::RunInventory(options);
      case berth::Role::kBroker:
        if (!berth::BecomeChild("berth-broker", options.parent).ok()) return 1;
        return berth::RunFakeBroker(berth::kChildFd, berth::CreateBlock);
    }
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
