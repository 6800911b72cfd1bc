#include "daemon/device/device_identity.h"

#include "common/cuda/fake_driver.h"
#include "common/error.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

TEST(DeviceIdentityTest, AnotherDeviceAtTheOrdinalIsRefusedWithBothNames) {
  cuda::FakeDriver driver;
  EXPECT_TRUE(CheckDevice(driver, 0, "GPU-fake").ok());
  const absl::Status refused = CheckDevice(driver, 0, "GPU-other");
  EXPECT_TRUE(IsRefusal(refused, Reason::kNotFound)) << refused;
  EXPECT_EQ(refused.message(), "no device GPU-other at CUDA's ordinal 0: GPU-fake is there");
  EXPECT_EQ(GetErrorDetails(refused)->metadata.at("found"), "GPU-fake");
}

TEST(DeviceIdentityTest, ADeviceThatDoesNotSayWhichItIsIsTheDriversError) {
  cuda::FakeDriver driver;
  driver.failing = "DeviceUuid";
  EXPECT_TRUE(IsRefusal(CheckDevice(driver, 0, "GPU-fake"), Reason::kDriver));
}

}  // namespace
}  // namespace berth
