#include "client/sdk/transport/fork_guard.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "common/os/fd_passing.h"
#include "common/os/unique_fd.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

bool IsOpen(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

// Runs `check` in a forked child and returns its result.
template <typename Check>
bool InForkedChild(Check check) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(check() ? 0 : 1);
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

class ForkGuardTest : public testing::Test {
 protected:
  void SetUp() override {
    auto pair = SocketPair();
    ASSERT_TRUE(pair.ok());
    lifeline_ = pair->first.get();
    channel_ = pair->second.get();
    UniqueFd session_credentials(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    ASSERT_TRUE(session_credentials);
    session_credentials_ = session_credentials.get();
    guard_.emplace(std::move(pair->first), std::move(pair->second), std::move(session_credentials));
  }
  int lifeline_ = -1;
  int channel_ = -1;
  int session_credentials_ = -1;
  std::optional<ForkGuard> guard_;
};

TEST_F(ForkGuardTest, ForkedChildClosesFdsAndIsRejected) {
  EXPECT_TRUE(InForkedChild([&] {
    return !IsOpen(lifeline_) && !IsOpen(channel_) && !IsOpen(session_credentials_) && guard_->forked() &&
           guard_->Check().code() == absl::StatusCode::kFailedPrecondition && !CheckNotForked().ok();
  }));
  EXPECT_TRUE(IsOpen(lifeline_));
  EXPECT_TRUE(IsOpen(channel_));
  EXPECT_TRUE(IsOpen(session_credentials_));
  EXPECT_TRUE(guard_->Check().ok());
}

TEST_F(ForkGuardTest, PersistentLifelineStaysOpenInChild) {
  guard_->KeepLifeline();
  EXPECT_TRUE(InForkedChild([&] {
    return IsOpen(lifeline_) && IsOpen(session_credentials_) && !IsOpen(channel_) && guard_->forked();
  }));
}

TEST_F(ForkGuardTest, ChildNeverClosesReusedFd) {
  EXPECT_TRUE(InForkedChild([&] {
    // Reuses the number of the closed lifeline, then destroys the guard.
    const int reused = ::open("/dev/null", O_RDONLY);
    if (reused != std::min({lifeline_, channel_, session_credentials_})) return false;
    guard_.reset();
    return IsOpen(reused);
  }));
}

TEST_F(ForkGuardTest, DestructionClosesFds) {
  guard_.reset();
  EXPECT_FALSE(IsOpen(lifeline_));
  EXPECT_FALSE(IsOpen(channel_));
  EXPECT_FALSE(IsOpen(session_credentials_));
}

}  // namespace
}  // namespace berth::internal
