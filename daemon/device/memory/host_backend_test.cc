#include "daemon/device/memory/host_backend.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace berth {
namespace {

TEST(HostBackendTest, BlockIsSealedAndClosedToOthers) {
  HostBackend backend("HOST-0", MiB(64));
  const absl::StatusOr<MemoryBlock> block = backend.Allocate(MiB(4), "");
  ASSERT_TRUE(block.ok());
  const int fd = block->fd.get();
  struct stat info;
  ASSERT_EQ(::fstat(fd, &info), 0);
  EXPECT_EQ(info.st_size, 4 << 20);
  EXPECT_EQ(info.st_mode & 0777, 0400u);
  EXPECT_EQ(::fcntl(fd, F_GET_SEALS) & (F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL),
            F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL);
  EXPECT_NE(::ftruncate(fd, 0), 0);
}

TEST(HostBackendTest, BlockIsAtMostAsLargeAsDevice) {
  HostBackend backend("HOST-0", MiB(64));
  EXPECT_TRUE(backend.Allocate(MiB(64), "").ok());
  EXPECT_FALSE(backend.Allocate(MiB(66), "").ok());
}

}  // namespace
}  // namespace berth
