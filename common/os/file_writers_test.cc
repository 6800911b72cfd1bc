#include "common/os/file_writers.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "common/os/unique_fd.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

class FileWritersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const UniqueFd made(::mkstemp(path_.data()));
    ASSERT_TRUE(made);
    ASSERT_EQ(::ftruncate(made.get(), 4096), 0);
  }
  void TearDown() override { ::unlink(path_.c_str()); }

  UniqueFd Open(int mode) const { return UniqueFd(::open(path_.c_str(), mode | O_CLOEXEC)); }
  FileWriters Find() const { return FindWriters(Open(O_RDONLY).get()); }
  bool IsSupported() const { return Find() != FileWriters::kUnknown; }

  std::string path_ = ::testing::TempDir() + "/writers-XXXXXX";
};

TEST_F(FileWritersTest, EachOpenForWritingIsFound) {
  if (!IsSupported()) GTEST_SKIP() << "no leases on the file system of " << path_;
  EXPECT_EQ(Find(), FileWriters::kNone);
  for (const int mode : {O_WRONLY, O_RDWR, O_WRONLY | O_APPEND}) {
    const UniqueFd writer = Open(mode);
    ASSERT_TRUE(writer);
    EXPECT_EQ(Find(), FileWriters::kSome) << mode;
  }
  EXPECT_EQ(Find(), FileWriters::kNone) << "every writer has closed the file";
  const UniqueFd reader = Open(O_RDONLY);
  EXPECT_EQ(Find(), FileWriters::kNone) << "a reader is no writer";
}

TEST_F(FileWritersTest, WritableMappingCountsAsWriter) {
  if (!IsSupported()) GTEST_SKIP() << "no leases on the file system of " << path_;
  UniqueFd writer = Open(O_RDWR);
  void* const page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, writer.get(), 0);
  ASSERT_NE(page, MAP_FAILED);
  writer.reset();
  EXPECT_EQ(Find(), FileWriters::kSome);
  ::munmap(page, 4096);
  EXPECT_EQ(Find(), FileWriters::kNone);
}

TEST_F(FileWritersTest, FilesWithoutLeasesAreUnknown) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reads(ends[0]), writes(ends[1]);
  EXPECT_EQ(FindWriters(reads.get()), FileWriters::kUnknown);
  EXPECT_EQ(FindWriters(-1), FileWriters::kUnknown);
}

// A writer that opens the file while the lease exists breaks the lease, which signals its holder.
TEST_F(FileWritersTest, BrokenLeaseEndsNoProcess) {
  if (!IsSupported()) GTEST_SKIP() << "no leases on the file system of " << path_;
  std::atomic<bool> over = false;
  std::atomic<int> opened = 0;
  std::thread writer([&] {
    while (!over) opened += Open(O_WRONLY) ? 1 : 0;
  });
  const UniqueFd file = Open(O_RDONLY);
  for (int i = 0; i < 20'000 || opened < 1'000; ++i) FindWriters(file.get());
  over = true;
  writer.join();
  EXPECT_EQ(FindWriters(file.get()), FileWriters::kNone);
}

}  // namespace
}  // namespace berth
