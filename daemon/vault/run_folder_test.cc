#include "daemon/vault/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace berth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class RunFolderTest : public ::testing::Test {
 protected:
  RunFolderTest() {
    root_ = "/tmp/berth" + std::string(6, 'X');
    ::mkdtemp(root_.data());
    path_ = root_ + "/run";
  }
  ~RunFolderTest() override { std::filesystem::remove_all(root_); }

  std::string root_;
  std::string path_;
};

TEST_F(RunFolderTest, OneAtATimeAndTheOtherIsToldWhoHasIt) {
  {
    const auto first = RunFolder::Take(path_);
    ASSERT_TRUE(first.ok()) << first.status();
    const absl::Status second = RunFolder::Take(path_).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(second));
    EXPECT_THAT(std::string(second.message()),
                AllOf(HasSubstr(path_), HasSubstr(absl::StrCat("pid ", ::getpid()))));
  }
  EXPECT_TRUE(RunFolder::Take(path_).ok());
}

TEST_F(RunFolderTest, TheNodeIdIsDrawnOnce) {
  const uint64_t first = RunFolder::Take(path_)->node();
  EXPECT_NE(first, 0u);
  EXPECT_EQ(RunFolder::Take(path_)->node(), first);
}

TEST_F(RunFolderTest, ABrokenNodeIdIsDrawnAgain) {
  const uint64_t first = RunFolder::Take(path_)->node();
  std::ofstream(path_ + "/node") << "abc";
  const uint64_t second = RunFolder::Take(path_)->node();
  EXPECT_NE(second, first);
  EXPECT_EQ(RunFolder::Take(path_)->node(), second);
}

TEST_F(RunFolderTest, SocketsReplaceWhatWasLeftAndGoWithTheFolder) {
  {
    auto folder = RunFolder::Take(path_);
    ASSERT_TRUE(folder.ok());
    std::ofstream(path_ + "/berthd.sock") << "left by another";
    const auto sockets = folder->Listen();
    ASSERT_TRUE(sockets.ok()) << sockets.status();
    EXPECT_EQ(sockets->size(), 5);
    EXPECT_TRUE(std::filesystem::is_socket(path_ + "/berthd.sock"));
    const RunFolder moved = *std::move(folder);
    EXPECT_TRUE(std::filesystem::is_socket(path_ + "/attach.sock"));
  }
  EXPECT_FALSE(std::filesystem::exists(path_ + "/berthd.sock"));
  EXPECT_FALSE(std::filesystem::exists(path_ + "/admin.sock"));
  EXPECT_FALSE(std::filesystem::exists(path_ + "/attach.sock"));
  EXPECT_FALSE(std::filesystem::exists(path_ + "/observer.sock"));
  EXPECT_FALSE(std::filesystem::exists(path_ + "/admin-attach.sock"));
}

TEST_F(RunFolderTest, SocketsStayWhereWhoInheritsThemDoesNotComeUp) {
  auto first = RunFolder::Take(path_);
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(first->Listen().ok());
  // As if it were killed.
  first->LeaveSockets();
  ASSERT_TRUE(RunFolder::Inherit(path_, *first->ShareLock()).ok());
  EXPECT_TRUE(std::filesystem::is_socket(path_ + "/admin.sock"));
  {
    auto next = RunFolder::Inherit(path_, *first->ShareLock());
    ASSERT_TRUE(next.ok());
    next->KeepSockets();
  }
  EXPECT_FALSE(std::filesystem::exists(path_ + "/admin.sock"));
}

TEST_F(RunFolderTest, ObserversReachTheirSocketAndNoOther) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root gives a socket to another group";
  constexpr gid_t kObservers = 12345;
  auto folder = RunFolder::Take(path_, /*observers=*/true);
  ASSERT_TRUE(folder.ok()) << folder.status();
  ASSERT_TRUE(folder->Listen(kObservers).ok());
  const auto info = [&](const std::string& name) {
    struct stat info = {};
    EXPECT_EQ(::stat((path_ + name).c_str(), &info), 0) << name;
    return info;
  };
  EXPECT_EQ(info("").st_mode & 07, 01u) << "they come through the folder, and see no names there";
  EXPECT_EQ(info("/observer.sock").st_mode & 0777, 0660u);
  EXPECT_EQ(info("/observer.sock").st_gid, kObservers);
  for (const char* const name : {"/admin.sock", "/admin-attach.sock"}) {
    EXPECT_EQ(info(name).st_mode & 0777, 0600u) << name;
  }
  for (const char* const name : {"/berthd.sock", "/attach.sock", "/admin.sock", "/admin-attach.sock"}) {
    EXPECT_NE(info(name).st_gid, kObservers) << name;
    EXPECT_EQ(info(name).st_mode & 07, 0u) << name;
  }
}

TEST_F(RunFolderTest, ASocketThatCannotBeMadeLeavesNoneBehind) {
  {
    auto folder = RunFolder::Take(path_);
    ASSERT_TRUE(folder.ok());
    std::filesystem::create_directory(path_ + "/attach.sock");
    EXPECT_THAT(std::string(folder->Listen().status().message()), HasSubstr(path_ + "/attach.sock"));
  }
  EXPECT_FALSE(std::filesystem::exists(path_ + "/berthd.sock"));
}

TEST_F(RunFolderTest, APathIsAbsoluteAndAtMost89Bytes) {
  for (const std::string& path :
       {std::string(), std::string("run"), root_ + "/" + std::string(89 - root_.size(), 'x')}) {
    EXPECT_TRUE(absl::IsInvalidArgument(RunFolder::Take(path).status())) << path;
  }
  const std::string longest = root_ + "/" + std::string(89 - root_.size() - 1, 'x');
  auto folder = RunFolder::Take(longest);
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_TRUE(folder->Listen().ok());
}

TEST_F(RunFolderTest, WhatIsNoFolderOfThisUserIsRefused) {
  std::ofstream file(path_);
  EXPECT_TRUE(absl::IsFailedPrecondition(RunFolder::Take(path_).status()));
  std::filesystem::create_directory_symlink(root_, root_ + "/link");
  EXPECT_TRUE(absl::IsFailedPrecondition(RunFolder::Take(root_ + "/link").status()));
  if (::geteuid() == 0) {
    std::filesystem::create_directory(root_ + "/other");
    ASSERT_EQ(::chown((root_ + "/other").c_str(), 12345, 12345), 0);
    EXPECT_TRUE(absl::IsFailedPrecondition(RunFolder::Take(root_ + "/other").status()));
  }
}

TEST_F(RunFolderTest, AFolderThatIsThereKeepsItsMode) {
  std::filesystem::create_directory(path_);
  ASSERT_EQ(::chmod(path_.c_str(), 0711), 0);
  ASSERT_TRUE(RunFolder::Take(path_).ok());
  struct stat info;
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0711u);
}

}  // namespace
}  // namespace berth
