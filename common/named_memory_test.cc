#include "common/named_memory.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "common/error.h"

namespace berth {
namespace {

class NamedMemoryTest : public ::testing::Test {
 protected:
  NamedMemoryTest() { EXPECT_NE(::mkdtemp(folder_.data()), nullptr); }
  ~NamedMemoryTest() override { std::filesystem::remove_all(folder_); }

  int Count() const {
    int files = 0;
    for ([[maybe_unused]] const auto& file : std::filesystem::directory_iterator(folder_ + "/ipc")) ++files;
    return files;
  }

  std::string folder_ = "/tmp/berth-named-XXXXXX";
};

TEST_F(NamedMemoryTest, WhoHasTheHandleOpensTheSameMemory) {
  IpcHandle handle;
  const auto made = CreateNamedMemory(folder_, 3, MiB(2), &handle);
  ASSERT_TRUE(made.ok()) << made.status();
  const auto opened = OpenNamedMemory(folder_, handle);
  ASSERT_TRUE(opened.ok()) << opened.status();
  struct stat ours, theirs;
  ASSERT_EQ(::fstat(made->get(), &ours), 0);
  ASSERT_EQ(::fstat(opened->get(), &theirs), 0);
  EXPECT_EQ(ours.st_ino, theirs.st_ino);
  EXPECT_EQ(theirs.st_size, 2 << 20);
  // For users who are not the daemon's.
  EXPECT_EQ(theirs.st_mode & 0777, 0666u);
}

TEST_F(NamedMemoryTest, TheFolderIsNotListedForOthers) {
  IpcHandle handle;
  ASSERT_TRUE(CreateNamedMemory(folder_, 0, MiB(2), &handle).ok());
  struct stat info;
  ASSERT_EQ(::stat((folder_ + "/ipc").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0711u);
}

TEST_F(NamedMemoryTest, RemovedMemoryIsNotFoundAndLivesOnWhereItIsOpen) {
  IpcHandle handle;
  const auto made = CreateNamedMemory(folder_, 0, MiB(2), &handle);
  ASSERT_TRUE(RemoveNamedMemory(folder_, handle).ok());
  EXPECT_TRUE(absl::IsNotFound(OpenNamedMemory(folder_, handle).status()));
  EXPECT_TRUE(absl::IsNotFound(RemoveNamedMemory(folder_, handle)));
  EXPECT_EQ(::pwrite(made->get(), "x", 1, 0), 1);
}

TEST_F(NamedMemoryTest, ADevicesMemoryIsRemovedWithoutItsHandlesAndOthersStay) {
  IpcHandle handle;
  ASSERT_TRUE(CreateNamedMemory(folder_, 1, MiB(2), &handle).ok());
  ASSERT_TRUE(CreateNamedMemory(folder_, 1, MiB(2), &handle).ok());
  ASSERT_TRUE(CreateNamedMemory(folder_, 11, MiB(2), &handle).ok());
  RemoveNamedMemory(folder_, 1);
  EXPECT_EQ(Count(), 1);
  EXPECT_TRUE(OpenNamedMemory(folder_, handle).ok());
  RemoveAllNamedMemory(folder_);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  // A folder that is not there has nothing to remove.
  RemoveNamedMemory(folder_ + "/none", 1);
}

TEST_F(NamedMemoryTest, AHandleThatIsNoneIsRefusedWithoutShowingIt) {
  IpcHandle handle;
  EXPECT_TRUE(IsRefusal(OpenNamedMemory(folder_, handle).status(), Reason::kInvalidField));
  handle.bytes.fill(std::byte{'/'});
  EXPECT_TRUE(IsRefusal(OpenNamedMemory(folder_, handle).status(), Reason::kInvalidField));
}

TEST_F(NamedMemoryTest, WhatIsTooLargeLeavesNothing) {
  IpcHandle handle;
  const auto made = CreateNamedMemory(folder_, 0, Bytes(uint64_t{1} << 60), &handle);
  EXPECT_TRUE(absl::IsResourceExhausted(made.status())) << made.status();
  EXPECT_EQ(Count(), 0);
}

}  // namespace
}  // namespace berth
