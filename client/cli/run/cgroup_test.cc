#include "client/cli/run/cgroup.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <vector>

#include "client/cli/run/child.h"
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

  absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& command) {
    return SpawnCommand(command, EnvironmentWith({}), {.signals = ReadSignalSettings(), .cgroup = cgroup_->fd()});
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

TEST_F(CgroupTest, UnexecutableCommandReturnsError) {
  EXPECT_TRUE(absl::IsNotFound(Spawn({"/no/such/command"}).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(Spawn({"/etc/passwd"}).status()));
  const absl::StatusOr<pid_t> child = Spawn({"sh", "-c", "exit 42"});
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ(Reap(*child).code, 42);
}

}  // namespace
}  // namespace berth::cli
