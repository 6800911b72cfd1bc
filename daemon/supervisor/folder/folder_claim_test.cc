#include "daemon/supervisor/folder/folder_claim.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>

#include "common/os/unique_fd.h"

namespace berth {
namespace {

class FolderClaimTest : public ::testing::Test {
 protected:
  FolderClaimTest() {
    root_ = "/tmp/berth" + std::string(6, 'X');
    ::mkdtemp(root_.data());
    path_ = root_ + "/run";
  }
  ~FolderClaimTest() override { std::filesystem::remove_all(root_); }

  static bool IsTaken(const std::string& path) { return absl::IsFailedPrecondition(CheckUnclaimed(path)); }

  std::string root_;
  std::string path_;
};

TEST_F(FolderClaimTest, ClaimLastsWhileDuplicateIsOpen) {
  EXPECT_TRUE(CheckUnclaimed(path_).ok());
  absl::StatusOr<UniqueFd> claim = ClaimFolder(path_);
  ASSERT_TRUE(claim.ok()) << claim.status();
  UniqueFd copy = *DuplicateFd(claim->get());
  EXPECT_TRUE(IsTaken(path_));
  EXPECT_TRUE(absl::IsFailedPrecondition(ClaimFolder(path_).status()));
  claim->reset();
  EXPECT_TRUE(IsTaken(path_));
  copy.reset();
  EXPECT_TRUE(CheckUnclaimed(path_).ok());
}

TEST_F(FolderClaimTest, ClaimCoversEachSpellingOfPath) {
  ASSERT_EQ(::mkdir((root_ + "/a").c_str(), 0700), 0);
  ASSERT_EQ(::symlink(root_.c_str(), (root_ + "/link").c_str()), 0);
  const absl::StatusOr<UniqueFd> claim = ClaimFolder(path_);
  ASSERT_TRUE(claim.ok()) << claim.status();
  for (const char* const other : {"/run/", "/run//", "//run", "/./run", "/a/../run", "/link/run"}) {
    EXPECT_TRUE(IsTaken(root_ + other)) << other;
  }
  for (const char* const other : {"/ru", "/run2", "/a/run", "/link"}) {
    EXPECT_TRUE(CheckUnclaimed(root_ + other).ok()) << other;
  }
}

TEST_F(FolderClaimTest, ClaimOutlivesFolderAndItsParent) {
  ASSERT_EQ(::mkdir(path_.c_str(), 0700), 0);
  const absl::StatusOr<UniqueFd> claim = ClaimFolder(path_);
  ASSERT_TRUE(claim.ok()) << claim.status();
  std::filesystem::remove_all(root_);
  ASSERT_EQ(::mkdir(root_.c_str(), 0700), 0);
  EXPECT_TRUE(IsTaken(path_));
  ASSERT_EQ(::mkdir(path_.c_str(), 0700), 0);
  EXPECT_TRUE(IsTaken(path_));
}

TEST_F(FolderClaimTest, ClaimOfOtherUserIsIgnored) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root: claims as another user";
  ASSERT_EQ(::chmod(root_.c_str(), 0755), 0);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t other = ::fork();
  if (other == 0) {
    // The other user knows every part of the name but the last, and can bind any number of names.
    if (::setresuid(1001, 1001, 1001) < 0) ::_exit(1);
    const absl::StatusOr<UniqueFd> claim = ClaimFolder(path_);
    if (!claim.ok() || ::write(ends[1], claim.ok() ? "y" : "n", 1) != 1) ::_exit(1);
    ::pause();
  }
  ::close(ends[1]);
  char claimed = 'n';
  ASSERT_EQ(::read(ends[0], &claimed, 1), 1);
  ASSERT_EQ(claimed, 'y');
  EXPECT_TRUE(CheckUnclaimed(path_).ok());
  const absl::StatusOr<UniqueFd> claim = ClaimFolder(path_);
  EXPECT_TRUE(claim.ok()) << claim.status();
  EXPECT_TRUE(IsTaken(path_));
  ::kill(other, SIGKILL);
  ::waitpid(other, nullptr, 0);
  ::close(ends[0]);
}

}  // namespace
}  // namespace berth
