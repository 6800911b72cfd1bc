#include "common/cuda/driver.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <thread>
#include <vector>

#include <berth/error.h>

#include "common/cuda/testing/fake_driver.h"

namespace berth::cuda {
namespace {

TEST(DriverErrorTest, OutOfMemoryHasItsOwnReason) {
  const absl::Status error = DriverError("cuMemCreate", 2, "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_TRUE(IsRefusal(error, Reason::kOutOfMemory));
  EXPECT_EQ(error.message(), "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2)");
}

TEST(DriverErrorTest, OtherErrorNamesCallAndCode) {
  const absl::Status error = DriverError("cuMemMap", 1, "CUDA_ERROR_INVALID_VALUE");
  EXPECT_TRUE(IsRefusal(error, Reason::kDriver));
  const std::map<std::string, std::string> metrics = GetErrorDetails(error)->metadata;
  EXPECT_EQ(metrics.at("call"), "cuMemMap");
  EXPECT_EQ(metrics.at("driver_code"), "1");
}

TEST(FindDeviceTest, DeviceIsFoundByUuidAndMissingIsNamed) {
  FakeDriver driver;
  EXPECT_EQ(*FindDevice(driver, "GPU-fake"), 0);
  const absl::Status missing = FindDevice(driver, "GPU-other").status();
  EXPECT_TRUE(IsRefusal(missing, Reason::kNotFound));
  EXPECT_EQ(GetErrorDetails(missing)->metadata.at("id"), "GPU-other");
}

TEST(FindDeviceTest, UnansweringDeviceIsSkipped) {
  FakeDriver driver;
  driver.failing = "DeviceUuid";
  EXPECT_TRUE(IsRefusal(FindDevice(driver, "GPU-fake").status(), Reason::kNotFound));
}

TEST(DriverTest, ConcurrentCallersGetSameDriver) {
  std::vector<absl::StatusOr<Driver*>> answers(8, absl::UnknownError(""));
  std::vector<std::thread> threads;
  for (auto& answer : answers) threads.emplace_back([&answer] { answer = Driver::Get(); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& answer : answers) {
    ASSERT_EQ(answer.ok(), answers[0].ok());
    if (answer.ok()) {
      EXPECT_EQ(*answer, *answers[0]);
    }
  }
}

TEST(DriverTest, AbsentDriverIsRefusedWithReason) {
  const absl::StatusOr<Driver*> driver = Driver::Get();
  if (driver.ok()) GTEST_SKIP() << "this machine has CUDA";
  EXPECT_EQ(getenv("BERTH_REQUIRE_CUDA"), nullptr) << driver.status();
  EXPECT_TRUE(IsRefusal(driver.status(), Reason::kUnsupported)) << driver.status();
  EXPECT_EQ(GetErrorDetails(driver.status())->metadata.at("capability"), "CUDA");
  EXPECT_FALSE(GetErrorDetails(driver.status())->metadata.at("why").empty());
  void* const library = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  EXPECT_EQ(IsNotInstalled(driver.status()), library == nullptr) << driver.status();
  EXPECT_FALSE(IsNotInstalled(DriverError("cuInit", 999, "CUDA_ERROR_UNKNOWN")));
}

TEST(DriverTest, DriverDescribesItsDevices) {
  const absl::StatusOr<Driver*> driver = Driver::Get();
  if (!driver.ok()) GTEST_SKIP() << driver.status();
  const int count = *(*driver)->DeviceCount();
  ASSERT_GT(count, 0);
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    const std::string uuid = *(*driver)->DeviceUuid(ordinal);
    EXPECT_EQ(uuid.size(), 40) << uuid;
    EXPECT_EQ(*FindDevice(**driver, uuid), ordinal);
    EXPECT_GT(*(*driver)->DeviceTotalMemory(ordinal), MiB(1));
    EXPECT_GT(*(*driver)->Attribute(ordinal, DeviceAttribute::kComputeCapabilityMajor), 0);
  }
  EXPECT_TRUE(IsRefusal((*driver)->DeviceUuid(count).status(), Reason::kDriver));
}

}  // namespace
}  // namespace berth::cuda
