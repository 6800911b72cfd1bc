#include "daemon/base/credentials_holders.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

#include "common/os/fd_passing.h"
#include "common/os/process.h"
#include "common/os/testing/lone_thread.h"
#include "common/wire/session_credentials.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

class CredentialsHoldersTest : public testing::Test {
 protected:
  ~CredentialsHoldersTest() override {
    for (const pid_t child : children_) End(child);
  }
  // Starts a process that has the session credentials open if `holds`, and that waits to be killed.
  pid_t StartChild(bool holds) {
    auto sockets = SocketPair();
    EXPECT_TRUE(sockets.ok());
    const pid_t child = ::fork();
    if (child == 0) {
      if (!holds) ::close(session_credentials_.get());
      // Signals that its fds are final.
      if (::write(sockets->second.get(), "x", 1) != 1) ::_exit(1);
      ::_exit(::pause());
    }
    char byte;
    EXPECT_EQ(::read(sockets->first.get(), &byte, 1), 1);
    children_.push_back(child);
    return child;
  }
  void End(pid_t child) {
    if (std::erase(children_, child) == 0) return;
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  std::vector<int32_t> Find() {
    const auto holders = FindCredentialsHolders({inode_});
    EXPECT_TRUE(holders.ok()) << holders.status();
    std::vector<int32_t> pids;
    if (!holders.ok() || !holders->contains(inode_)) return pids;
    for (const CredentialsHolder& holder : holders->at(inode_)) {
      EXPECT_EQ(PidOfPidfd(holder.pidfd.get()), holder.pid);
      pids.push_back(holder.pid);
    }
    return pids;
  }

  UniqueFd session_credentials_ = WriteSessionCredentials({.session = SessionId(1), .folder = "/run/berth"}).value();
  uint64_t inode_ = InodeOf(session_credentials_.get()).value();
  std::vector<pid_t> children_;
};

TEST_F(CredentialsHoldersTest, FindsProcessesThatInheritedCredentials) {
  EXPECT_EQ(Find(), std::vector<int32_t>()) << "the searching process is none";
  const pid_t child = StartChild(/*holds=*/true);
  StartChild(/*holds=*/false);
  EXPECT_EQ(Find(), std::vector<int32_t>{child});
  const pid_t other = StartChild(/*holds=*/true);
  EXPECT_EQ(Find().size(), 2u);
  End(child);
  EXPECT_EQ(Find(), std::vector<int32_t>{other});
}

TEST_F(CredentialsHoldersTest, FindsProcessWhoseMainThreadHasEnded) {
  const pid_t child = StartLoneThread();
  children_.push_back(child);
  EXPECT_EQ(Find(), std::vector<int32_t>{child});
  End(child);
  EXPECT_EQ(Find(), std::vector<int32_t>());
}

TEST_F(CredentialsHoldersTest, SearchWithoutFdsFailsInsteadOfMissingHolders) {
  StartChild(/*holds=*/true);
  // The search runs while the first process's pidfd is open.
  StartChild(/*holds=*/false);
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int lowest_free = ::dup(session_credentials_.get());
  ::close(lowest_free);
  bool found = false;
  int failed = 0;
  for (rlim_t free = 0; !found; ++free) {
    SCOPED_TRACE(free);
    const rlimit limit = {.rlim_cur = static_cast<rlim_t>(lowest_free) + free, .rlim_max = before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    const auto holders = FindCredentialsHolders({inode_});
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    found = holders.ok();
    failed += found ? 0 : 1;
    if (found) {
      EXPECT_EQ(holders->count(inode_), 1u);
    } else {
      EXPECT_TRUE(absl::IsResourceExhausted(holders.status())) << holders.status();
    }
  }
  EXPECT_GE(failed, 5) << "each step needs one more than those before";
}

TEST_F(CredentialsHoldersTest, FileWithSameInodeNumberIsNoCredentials) {
  const pid_t child = StartChild(/*holds=*/true);
  // The child's stdin is a file of another mount.
  const uint64_t other = InodeOf(STDIN_FILENO).value();
  const auto holders = FindCredentialsHolders({other});
  ASSERT_TRUE(holders.ok()) << holders.status();
  EXPECT_TRUE(holders->empty());
  End(child);
}

TEST_F(CredentialsHoldersTest, CredentialsWithoutHolderAreOmitted) {
  const auto holders = FindCredentialsHolders({inode_, inode_ + 1'000'000});
  ASSERT_TRUE(holders.ok()) << holders.status();
  EXPECT_TRUE(holders->empty());
}

}  // namespace
}  // namespace berth
