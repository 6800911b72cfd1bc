#include "daemon/device/host_backend.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/os_error.h"
#include "daemon/device/memory_backend_conformance.h"

namespace berth {
namespace {

class HostHarness : public BackendHarness {
 public:
  absl::StatusOr<std::unique_ptr<MemoryBackend>> Open() override {
    return std::make_unique<HostBackend>("HOST-0", MiB(64));
  }

  absl::StatusOr<std::string> Read(int fd, Bytes, uint64_t offset, size_t size) override {
    std::string text(size, '?');
    if (::pread(fd, text.data(), size, static_cast<off_t>(offset)) != static_cast<ssize_t>(size)) {
      return OsError("pread", errno);
    }
    return text;
  }

  absl::Status Write(int fd, Bytes bytes, uint64_t offset, absl::string_view text) override {
    void* const at = ::mmap(nullptr, bytes.count(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return OsError("mmap", errno);
    memcpy(static_cast<char*>(at) + offset, text.data(), text.size());
    ::munmap(at, bytes.count());
    return absl::OkStatus();
  }
};

HostHarness harness;
INSTANTIATE_TEST_SUITE_P(Host, MemoryBackendConformance, ::testing::Values(&harness));

TEST(HostBackendTest, ABlockIsSealedAndClosedToOthers) {
  HostBackend backend("HOST-0", MiB(64));
  const absl::StatusOr<UniqueFd> fd = backend.Create(MiB(4));
  ASSERT_TRUE(fd.ok());
  struct stat info;
  ASSERT_EQ(::fstat(fd->get(), &info), 0);
  EXPECT_EQ(info.st_size, 4 << 20);
  EXPECT_EQ(info.st_mode & 0777, 0400u);
  EXPECT_EQ(::fcntl(fd->get(), F_GET_SEALS) & (F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL),
            F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL);
  EXPECT_NE(::ftruncate(fd->get(), 0), 0);
}

TEST(HostBackendTest, ABlockMayBeAsLargeAsTheDeviceAndNoLarger) {
  HostBackend backend("HOST-0", MiB(64));
  EXPECT_TRUE(backend.Create(MiB(64)).ok());
  EXPECT_FALSE(backend.Create(MiB(66)).ok());
}

}  // namespace
}  // namespace berth

int main(int argc, char** argv) { return berth::RunConformance(argc, argv, berth::harness); }
