#include "daemon/service/attach/holder_watch.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "common/notification.h"
#include "common/os/fd_passing.h"
#include "common/os/unique_fd.h"
#include "common/wire/session_credentials.h"
#include "daemon/base/credentials_holders.h"
#include "gtest/gtest.h"

namespace berth::service {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

class HolderWatchTest : public testing::Test {
 protected:
  HolderWatchTest() : runner_([this] { loop_->Run(); }) {}
  ~HolderWatchTest() override {
    watch_.reset();
    loop_->Stop();
    runner_.join();
    for (const pid_t child : children_) ::kill(child, SIGKILL);
    for (const pid_t child : children_) ::waitpid(child, nullptr, 0);
  }

  // Starts a process that has the session credentials open.
  pid_t StartHolder() {
    auto sockets = SocketPair();
    EXPECT_TRUE(sockets.ok());
    const pid_t child = ::fork();
    if (child == 0) {
      if (::write(sockets->second.get(), "x", 1) != 1) ::_exit(1);
      ::_exit(::pause());
    }
    char byte;
    EXPECT_EQ(::read(sockets->first.get(), &byte, 1), 1);
    children_.insert(child);
    return child;
  }
  // Starts a process that has the session credentials open until Close(), and lives on. Returns its socket.
  UniqueFd StartClosingHolder() {
    auto sockets = SocketPair();
    EXPECT_TRUE(sockets.ok());
    const pid_t child = ::fork();
    if (child == 0) {
      char byte;
      if (::write(sockets->second.get(), "x", 1) != 1 || ::read(sockets->second.get(), &byte, 1) != 1) ::_exit(1);
      ::close(session_credentials_.get());
      if (::write(sockets->second.get(), "x", 1) != 1) ::_exit(1);
      ::_exit(::pause());
    }
    children_.insert(child);
    char byte;
    EXPECT_EQ(::read(sockets->first.get(), &byte, 1), 1);
    return std::move(sockets->first);
  }
  static void Close(const UniqueFd& holder) {
    char byte;
    EXPECT_EQ(::write(holder.get(), "x", 1), 1);
    EXPECT_EQ(::read(holder.get(), &byte, 1), 1);
  }
  void Kill(pid_t child) {
    children_.erase(child);
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  }

  const std::unique_ptr<EventLoop> loop_ = EventLoop::Create().value();
  std::thread runner_;
  UniqueFd session_credentials_ = WriteSessionCredentials({.session = SessionId(7), .folder = "/run/berth"}).value();
  const uint64_t inode_ = InodeOf(session_credentials_.get()).value();
  Notification gone_;
  std::unique_ptr<HolderWatch> watch_ = std::make_unique<HolderWatch>(loop_.get(), [this](SessionId session) {
    EXPECT_EQ(session, SessionId(7));
    gone_.Notify();
  });
  std::set<pid_t> children_;
};

TEST_F(HolderWatchTest, SessionWithoutHoldersEndsAtOnce) {
  watch_->Watch(SessionId(7), inode_);
  EXPECT_TRUE(gone_.WaitForNotificationWithTimeout(kPatience));
}

TEST_F(HolderWatchTest, EndOfLastHolderIsReported) {
  const pid_t first = StartHolder();
  const pid_t second = StartHolder();
  watch_->Watch(SessionId(7), inode_);
  Kill(first);
  EXPECT_FALSE(gone_.HasBeenNotified());
  Kill(second);
  EXPECT_TRUE(gone_.WaitForNotificationWithTimeout(kPatience));
}

TEST_F(HolderWatchTest, HolderInheritingDuringWatchIsFound) {
  const pid_t first = StartHolder();
  watch_->Watch(SessionId(7), inode_);
  const pid_t second = StartHolder();
  Kill(first);
  EXPECT_FALSE(gone_.HasBeenNotified());
  Kill(second);
  EXPECT_TRUE(gone_.WaitForNotificationWithTimeout(kPatience));
}

TEST_F(HolderWatchTest, SecondWatchSearchesAgain) {
  const UniqueFd holder = StartClosingHolder();
  watch_->Watch(SessionId(7), inode_);
  Close(holder);
  watch_->Watch(SessionId(7), inode_);
  EXPECT_TRUE(gone_.WaitForNotificationWithTimeout(kPatience));
}

TEST_F(HolderWatchTest, SearchBegunBeforeSecondWatchDoesNotCount) {
  Notification found_holder;
  Notification closed;
  watch_ = std::make_unique<HolderWatch>(
      loop_.get(), [this](SessionId) { gone_.Notify(); },
      [&](const absl::flat_hash_set<uint64_t>& inodes) {
        auto found = FindCredentialsHolders(inodes);
        if (!found_holder.HasBeenNotified()) {
          EXPECT_TRUE(found.ok() && found->contains(inode_));
          found_holder.Notify();
          EXPECT_TRUE(closed.WaitForNotificationWithTimeout(kPatience));
        }
        return found;
      });
  const UniqueFd holder = StartClosingHolder();
  watch_->Watch(SessionId(7), inode_);
  EXPECT_TRUE(found_holder.WaitForNotificationWithTimeout(kPatience));
  Close(holder);
  watch_->Watch(SessionId(7), inode_);
  closed.Notify();
  EXPECT_TRUE(gone_.WaitForNotificationWithTimeout(kPatience));
  // The thread of the watch uses this test's variables.
  watch_.reset();
}

TEST_F(HolderWatchTest, CancelledSessionIsNotReported) {
  const pid_t holder = StartHolder();
  watch_->Watch(SessionId(7), inode_);
  watch_->Cancel(SessionId(7));
  Kill(holder);
  watch_.reset();
  EXPECT_FALSE(gone_.HasBeenNotified());
}

}  // namespace
}  // namespace berth::service
