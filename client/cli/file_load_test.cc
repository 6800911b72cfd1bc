#include "client/cli/file_load.h"

#include <sys/mman.h>
#include <unistd.h>

#include <vector>

#include "absl/strings/match.h"
#include "common/cuda/testing/fake_driver.h"
#include "common/os/unique_fd.h"
#include "gtest/gtest.h"

namespace berth::cli {
namespace {

// A file of `size` bytes whose chunks differ.
class FileLoadTest : public ::testing::TestWithParam<size_t> {
 protected:
  static std::vector<std::byte> Content(size_t size) {
    std::vector<std::byte> content(size);
    for (size_t i = 0; i < size; ++i) content[i] = static_cast<std::byte>(i * 7 + i / 4096);
    return content;
  }
  static UniqueFd FileWith(const std::vector<std::byte>& content) {
    UniqueFd file(::memfd_create("content", MFD_CLOEXEC));
    EXPECT_EQ(::write(file.get(), content.data(), content.size()), static_cast<ssize_t>(content.size()));
    return file;
  }
};

// One thread, as the fake driver is not thread-safe.
constexpr LoadOptions kOneThread = {.threads = 1, .chunk = KiB(64)};

TEST_P(FileLoadTest, FileIsLoadedToHostMemory) {
  const std::vector<std::byte> content = Content(GetParam());
  const UniqueFd file = FileWith(content);
  for (const size_t threads : {1, 3, 8}) {
    std::vector<std::byte> to(content.size());
    EXPECT_TRUE(LoadToHost(file.get(), to, {.threads = threads, .chunk = KiB(64)}).ok());
    EXPECT_TRUE(to == content) << threads;
  }
}

TEST_P(FileLoadTest, FileIsLoadedToDeviceMemory) {
  const std::vector<std::byte> content = Content(GetParam());
  const UniqueFd file = FileWith(content);
  cuda::FakeDriver driver;
  const cuda::DevicePointer to = *driver.Allocate(Bytes(content.size()));
  EXPECT_TRUE(
      LoadToDevice(driver, driver.kPrimary, file.get(), Bytes(content.size()), to, kOneThread).ok());
  std::vector<std::byte> got(content.size());
  ASSERT_TRUE(driver.CopyToHost(got, to).ok());
  EXPECT_TRUE(got == content);
  EXPECT_EQ(driver.current, nullptr) << "the thread has the context that it had";
  EXPECT_EQ(driver.contexts, 0);
  EXPECT_TRUE(driver.registered.empty());
  EXPECT_TRUE(driver.streams.empty());
}

INSTANTIATE_TEST_SUITE_P(Sizes, FileLoadTest, ::testing::Values(1, 4096, 65536, 65537, 1'000'003));

TEST_F(FileLoadTest, ShortFileIsDataLoss) {
  const UniqueFd file = FileWith(Content(200'000));
  std::vector<std::byte> to(300'000);
  EXPECT_TRUE(absl::IsDataLoss(LoadToHost(file.get(), to, {.threads = 4, .chunk = KiB(64)})));
  cuda::FakeDriver driver;
  const cuda::DevicePointer device = *driver.Allocate(Bytes(to.size()));
  EXPECT_TRUE(absl::IsDataLoss(
      LoadToDevice(driver, driver.kPrimary, file.get(), Bytes(to.size()), device, kOneThread)));
  EXPECT_TRUE(driver.streams.empty());
  EXPECT_TRUE(driver.registered.empty());
}

TEST_F(FileLoadTest, FailedDriverCallIsReportedAndLeavesNothing) {
  const std::vector<std::byte> content = Content(300'000);
  const UniqueFd file = FileWith(content);
  for (const char* const call : {"SetCurrentContext", "CreateStream", "CopyToDeviceAsync", "SynchronizeStream"}) {
    cuda::FakeDriver driver;
    driver.failing = call;
    const cuda::DevicePointer to = *driver.Allocate(Bytes(content.size()));
    const absl::Status status =
        LoadToDevice(driver, driver.kPrimary, file.get(), Bytes(content.size()), to, kOneThread);
    EXPECT_TRUE(absl::StrContains(status.message(), call)) << status;
    EXPECT_TRUE(driver.streams.empty()) << call;
    EXPECT_TRUE(driver.registered.empty()) << call;
  }
}

TEST_F(FileLoadTest, UnpinnableMemoryStillLoads) {
  const std::vector<std::byte> content = Content(300'000);
  const UniqueFd file = FileWith(content);
  cuda::FakeDriver driver;
  driver.failing = "RegisterHostMemory";
  const cuda::DevicePointer to = *driver.Allocate(Bytes(content.size()));
  EXPECT_TRUE(LoadToDevice(driver, driver.kPrimary, file.get(), Bytes(content.size()), to, kOneThread).ok());
  std::vector<std::byte> got(content.size());
  ASSERT_TRUE(driver.CopyToHost(got, to).ok());
  EXPECT_TRUE(got == content);
}

}  // namespace
}  // namespace berth::cli
