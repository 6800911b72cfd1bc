#include "daemon/device/host_backend.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/os_error.h"
#include "daemon/device/memory_resource_conformance.h"

namespace berth {
namespace {

class HostHarness : public ResourceHarness {
 public:
  absl::StatusOr<std::unique_ptr<MemoryResource>> Open() override {
    return std::make_unique<HostBackend>("HOST-0", MiB(64));
  }

  absl::StatusOr<std::string> Read(const MemoryBlock& block, uint64_t offset, size_t size) override {
    std::string text(size, '?');
    if (::pread(block.fd.get(), text.data(), size, static_cast<off_t>(offset)) !=
        static_cast<ssize_t>(size)) {
      return OsError("pread", errno);
    }
    return text;
  }

  absl::Status Write(const MemoryBlock& block, uint64_t offset, absl::string_view text) override {
    if (::pwrite(block.fd.get(), text.data(), text.size(), static_cast<off_t>(offset)) !=
        static_cast<ssize_t>(text.size())) {
      return OsError("pwrite", errno);
    }
    return absl::OkStatus();
  }
};

HostHarness harness;
INSTANTIATE_TEST_SUITE_P(Host, MemoryResourceConformance, ::testing::Values(&harness));

TEST(HostBackendTest, ABlockIsSealedAndClosedToOthers) {
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

TEST(HostBackendTest, ABlockMayBeAsLargeAsTheDeviceAndNoLarger) {
  HostBackend backend("HOST-0", MiB(64));
  EXPECT_TRUE(backend.Allocate(MiB(64), "").ok());
  EXPECT_FALSE(backend.Allocate(MiB(66), "").ok());
}

}  // namespace
}  // namespace berth

int main(int argc, char** argv) { return berth::RunConformance(argc, argv, berth::harness); }
