#include "client/cli/run/cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "client/cli/run/child.h"
#include "common/os/unique_fd.h"
#include "gtest/gtest.h"

namespace berth::cli {
namespace {

class CgroupTest : public testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<Cgroup> made = Cgroup::Make();
    if (!made.ok()) GTEST_SKIP() << made.status();
    cgroup_.emplace(*std::move(made));
  }

  void TearDown() override {
    if (!cgroup_.has_value()) return;
    cgroup_->Signal(SIGKILL);
    cgroup_->AwaitEmpty();
  }

  absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& command) { return SpawnIn(cgroup_->fd(), command); }
  // -1 stands for the test's own group.
  static absl::StatusOr<pid_t> SpawnIn(int cgroup, const std::vector<std::string>& command) {
    return SpawnCommand(command, EnvironmentWith({}), {.signals = ReadSignalSettings(), .cgroup = cgroup});
  }
  // Starts a process of user `uid` in the group, which waits to be killed; with `detached`, in a process group of its
  // own. Returns 0 where the kernel does not allow it.
  pid_t Fork(uid_t uid, bool detached) {
    int ready[2];
    if (::pipe2(ready, O_CLOEXEC) < 0) return 0;
    const UniqueFd read_end(ready[0]);
    UniqueFd write_end(ready[1]);
    const pid_t child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      const int processes = ::openat(cgroup_->fd(), "cgroup.procs", O_WRONLY | O_CLOEXEC);
      const bool in = ::write(processes, "0", 1) == 1 && (!detached || ::setsid() > 0);
      if (!in || (uid != ::geteuid() && ::setresuid(uid, uid, uid) < 0) || ::write(ready[1], "r", 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    write_end.reset();
    char byte;
    if (child < 0 || ::read(read_end.get(), &byte, 1) != 1) return 0;
    return child;
  }
  // Waits for the end of a child, which stays a zombie. Returns whether it ends in time.
  static bool Ends(pid_t child) {
    const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
    pollfd ended = {.fd = pidfd.get(), .events = POLLIN};
    return ::poll(&ended, 1, 60'000) == 1;
  }
  static bool Lives(pid_t child) {
    siginfo_t info = {};
    return ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
  }
  // Waits until the kernel has frozen the group. Returns false where it cannot be frozen.
  bool Freeze() {
    const UniqueFd events(::openat(cgroup_->fd(), "cgroup.events", O_RDONLY | O_CLOEXEC));
    if (!(std::ofstream(cgroup_->path() + "/cgroup.freeze") << "1" << std::flush)) return false;
    while (true) {
      char text[256] = {};
      if (::pread(events.get(), text, sizeof(text) - 1, 0) <= 0) return false;
      if (std::string(text).find("frozen 1") != std::string::npos) return true;
      pollfd changed = {.fd = events.get(), .events = POLLPRI};
      if (::poll(&changed, 1, 60'000) != 1) return false;
    }
  }

  std::optional<Cgroup> cgroup_;
};

TEST_F(CgroupTest, EmptyCgroupIsRemoved) {
  const std::string path = cgroup_->path();
  cgroup_->AwaitEmpty();
  EXPECT_EQ(::access(path.c_str(), F_OK), 0);
  cgroup_.reset();
  EXPECT_NE(::access(path.c_str(), F_OK), 0);
}

TEST_F(CgroupTest, DetachedProcessStaysInCgroup) {
  // The shell ends. It leaves a process in another session, without inherited fds, that waits on a fifo with no writer.
  const std::string fifo = testing::TempDir() + "/cgroup_test_" + std::to_string(::getpid());
  const absl::StatusOr<pid_t> child = Spawn(
      {"sh", "-c", "mkfifo " + fifo + " && { setsid sh -c 'exec cat <" + fifo + "' >/dev/null 2>&1 <&- & }"});
  ASSERT_TRUE(child.ok()) << child.status();
  AwaitEnd(*child);
  EXPECT_EQ(Reap(*child).code, 0);
  ::rmdir(cgroup_->path().c_str());
  EXPECT_EQ(errno, EBUSY) << "somebody is in it";
  cgroup_->Signal(SIGTERM);
  cgroup_->AwaitEmpty();
  ::unlink(fifo.c_str());
}

TEST_F(CgroupTest, SignalReachesEachProcessOfCgroup) {
  // SIGKILL comes last, as it also kills the group: Linux then kills every process that starts in it.
  for (const int number : {SIGTERM, SIGKILL}) {
    std::vector<pid_t> children;
    for (int i = 0; i < 3; ++i) {
      const absl::StatusOr<pid_t> child = Spawn({"sleep", "1000"});
      ASSERT_TRUE(child.ok()) << child.status();
      children.push_back(*child);
    }
    cgroup_->Signal(number);
    cgroup_->AwaitEmpty();
    for (const pid_t child : children) EXPECT_EQ(Reap(child).signal, number);
  }
}

TEST_F(CgroupTest, EmptyCgroupTakesSignals) {
  for (const int number : {SIGTERM, SIGKILL}) cgroup_->Signal(number);
  cgroup_->AwaitEmpty();
  EXPECT_EQ(::access(cgroup_->path().c_str(), F_OK), 0);
}

TEST_F(CgroupTest, SignalReachesGroupsBelow) {
  const std::string path = cgroup_->path();
  const std::string below = path + "/below";
  const std::string lowest = below + "/lowest";
  for (const std::string& group : {below, lowest, path + "/empty"}) ASSERT_EQ(::mkdir(group.c_str(), 0755), 0);
  for (const int number : {SIGTERM, SIGKILL}) {
    std::vector<pid_t> children;
    for (const std::string& group : {path, below, lowest}) {
      const UniqueFd folder(::open(group.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      const absl::StatusOr<pid_t> child = SpawnIn(folder.get(), {"sleep", "1000"});
      ASSERT_TRUE(child.ok()) << child.status();
      children.push_back(*child);
    }
    cgroup_->Signal(number);
    for (const pid_t child : children) {
      ASSERT_TRUE(Ends(child)) << number;
      EXPECT_EQ(Reap(child).signal, number);
    }
    cgroup_->AwaitEmpty();
  }
  cgroup_.reset();
  EXPECT_NE(::access(path.c_str(), F_OK), 0) << "the groups below are left";
}

TEST_F(CgroupTest, SignalReachesFrozenProcesses) {
  for (const int number : {SIGTERM, SIGKILL}) {
    const absl::StatusOr<pid_t> child = Spawn({"sleep", "1000"});
    ASSERT_TRUE(child.ok()) << child.status();
    if (!Freeze()) GTEST_SKIP() << "the kernel freezes no group here";
    cgroup_->Signal(number);
    ASSERT_TRUE(Ends(*child)) << number;
    EXPECT_EQ(Reap(*child).signal, number);
    std::ofstream(cgroup_->path() + "/cgroup.freeze") << "0";
  }
}

// The shell starts and ends processes while the group is read; the pid of an ended one may name a process outside.
TEST_F(CgroupTest, SignalEndsBusyGroupAndNoOtherProcess) {
  const absl::StatusOr<pid_t> bystander = SpawnIn(-1, {"sleep", "1000"});
  ASSERT_TRUE(bystander.ok()) << bystander.status();
  for (int round = 0; round < 20; ++round) {
    const absl::StatusOr<pid_t> busy = Spawn({"sh", "-c", "while :; do (exit 0); done"});
    ASSERT_TRUE(busy.ok()) << busy.status();
    cgroup_->Signal(SIGTERM);
    ASSERT_TRUE(Ends(*busy));
    EXPECT_EQ(Reap(*busy).signal, SIGTERM);
    cgroup_->AwaitEmpty();
  }
  EXPECT_TRUE(Lives(*bystander));
  ::kill(*bystander, SIGKILL);
  Reap(*bystander);
}

TEST_F(CgroupTest, SignalOfOtherGroupsSparesOwnProcessGroup) {
  const pid_t own = Fork(::geteuid(), /*detached=*/false);
  const pid_t detached = Fork(::geteuid(), /*detached=*/true);
  ASSERT_TRUE(own > 0 && detached > 0);
  cgroup_->Signal(SIGTERM, /*of_other_groups=*/true);
  ASSERT_TRUE(Ends(detached));
  EXPECT_EQ(Reap(detached).signal, SIGTERM);
  EXPECT_TRUE(Lives(own));
  cgroup_->Signal(SIGTERM);
  ASSERT_TRUE(Ends(own));
  EXPECT_EQ(Reap(own).signal, SIGTERM);
}

TEST_F(CgroupTest, UnpermittedSignalReachesOwnProcesses) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root: changes users";
  constexpr uid_t kUser = 7001;
  const pid_t of_root = Fork(0, /*detached=*/false);
  const pid_t of_user = Fork(kUser, /*detached=*/false);
  if (of_user == 0) GTEST_SKIP() << "needs CAP_SETUID: changes users";
  ASSERT_GT(of_root, 0);
  // SIGKILL: `cgroup.kill` is root's alone, so that each process gets the signal singly.
  const pid_t sender = ::fork();
  if (sender == 0) {
    if (::setresuid(kUser, kUser, kUser) < 0) ::_exit(1);
    cgroup_->Signal(SIGKILL);
    ::_exit(0);
  }
  EXPECT_EQ(Reap(sender).code, 0);
  ASSERT_TRUE(Ends(of_user));
  EXPECT_EQ(Reap(of_user).signal, SIGKILL);
  EXPECT_TRUE(Lives(of_root));
  cgroup_->Signal(SIGKILL);
  ASSERT_TRUE(Ends(of_root));
  Reap(of_root);
}

TEST_F(CgroupTest, UnexecutableCommandReturnsError) {
  EXPECT_TRUE(absl::IsNotFound(Spawn({"/no/such/command"}).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(Spawn({"/etc/passwd"}).status()));
  const absl::StatusOr<pid_t> child = Spawn({"sh", "-c", "exit 42"});
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ(Reap(*child).code, 42);
}

}  // namespace
}  // namespace berth::cli
