#include "daemon/device/worker/self_test.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>

#include <string>

#include "common/cuda/testing/fake_driver.h"
#include "daemon/device/memory/testing/fake_resource.h"

namespace berth {
namespace {

constexpr Bytes kBytes = MiB(4);

// A device whose memory reads as last written, except for one byte of the `bad`-th read from now; 0 for no bad read.
class WrittenDriver : public cuda::FakeDriver {
 public:
  absl::Status Fill(cuda::DevicePointer at, uint8_t value, Bytes bytes) override {
    written_ = value;
    return FakeDriver::Fill(at, value, bytes);
  }
  absl::Status CopyToHost(std::span<std::byte> to, cuda::DevicePointer from) override {
    if (const absl::Status copied = FakeDriver::CopyToHost(to, from); !copied.ok()) return copied;
    ::memset(to.data(), written_, to.size());
    if (bad > 0 && --bad == 0) to[7] = std::byte{0};
    return absl::OkStatus();
  }
  absl::StatusOr<int> Attribute(int ordinal, cuda::DeviceAttribute attribute) override {
    if (attribute == cuda::DeviceAttribute::kManyContexts && exclusive) return 0;
    return FakeDriver::Attribute(ordinal, attribute);
  }

  int bad = 0;
  bool exclusive = false;

 private:
  uint8_t written_ = 0;
};

TEST(SelfTestTest, IntactDevicePasses) {
  WrittenDriver driver;
  const absl::Status passed = TestCudaDevice(driver, 0, kBytes);
  EXPECT_TRUE(passed.ok()) << passed;
  EXPECT_TRUE(driver.nothing_left());
  EXPECT_EQ(driver.contexts, 0);
}

TEST(SelfTestTest, SingleWrongByteFails) {
  for (const int bad : {1, 4}) {
    WrittenDriver driver;
    driver.bad = bad;
    const absl::Status failed = TestCudaDevice(driver, 0, kBytes);
    EXPECT_TRUE(absl::IsInternal(failed)) << failed;
    EXPECT_EQ(failed.message(), "1 of 2097152 bytes are not what was written to them");
    EXPECT_TRUE(driver.nothing_left());
    EXPECT_EQ(driver.contexts, 0);
  }
}

TEST(SelfTestTest, FailedCallFailsTest) {
  for (const char* const step :
       {"RetainPrimaryContext", "CreateMemory", "MapMemory", "Fill", "SynchronizeContext", "CopyToHost"}) {
    WrittenDriver driver;
    driver.failing = step;
    EXPECT_NE(std::string(TestCudaDevice(driver, 0, kBytes).message()).find(step), std::string::npos) << step;
  }
}

TEST(SelfTestTest, ExclusiveDeviceIsNotTested) {
  WrittenDriver driver;
  driver.exclusive = true;
  EXPECT_TRUE(TestCudaDevice(driver, 0, kBytes).ok());
  EXPECT_EQ(driver.calls, std::vector<std::string>{});
}

TEST(SelfTestTest, BackendIsTestedWithBlock) {
  FakeResource resource;
  EXPECT_TRUE(TestBackend(resource).ok());
  EXPECT_EQ(resource.outstanding(), Bytes());
  resource.fill_error = absl::InternalError("it is broken");
  EXPECT_EQ(TestBackend(resource).message(), "it is broken");
}

TEST(SelfTestCudaTest, DeviceOfThisMachinePasses) {
  const absl::StatusOr<cuda::Driver*> driver = cuda::Driver::Get();
  if (!driver.ok()) {
    const char* const required = getenv("BERTH_REQUIRE_CUDA");
    ASSERT_TRUE(required == nullptr || strcmp(required, "1") != 0) << driver.status();
    GTEST_SKIP() << driver.status();
  }
  const absl::Status passed = TestCudaDevice(**driver, 0, kSelfTestBytes);
  EXPECT_TRUE(passed.ok()) << passed;
}

}  // namespace
}  // namespace berth
