#include "client/cli/cgroup.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include <optional>
#include <string>

#include "client/cli/child.h"
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
    sigset_t none;
    ::sigemptyset(&none);
    return SpawnCommand(command, EnvironmentWith({}), none, cgroup_->fd());
  }

  std::optional<Cgroup> cgroup_;
};

TEST_F(CgroupTest, OneThatNobodyIsInIsEmptyAndIsRemoved) {
  const std::string path = cgroup_->path();
  cgroup_->AwaitEmpty();
  EXPECT_EQ(::access(path.c_str(), F_OK), 0);
  cgroup_.reset();
  EXPECT_NE(::access(path.c_str(), F_OK), 0);
}

TEST_F(CgroupTest, WhoDetachedItselfIsStillInIt) {
  // The shell ends; what it left waits on a fifo that nobody opens, in a session of its own, without any fd.
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

TEST_F(CgroupTest, ACommandThatCannotBeExecutedIsTold) {
  EXPECT_TRUE(absl::IsNotFound(Spawn({"/no/such/command"}).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(Spawn({"/etc/passwd"}).status()));
  const absl::StatusOr<pid_t> child = Spawn({"sh", "-c", "exit 42"});
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ(Reap(*child).code, 42);
}

}  // namespace
}  // namespace berth::cli
