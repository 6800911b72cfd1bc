#include "daemon/device/worker/device_identity.h"

#include <berth/error.h>

#include "common/cuda/testing/fake_driver.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

TEST(DeviceIdentityTest, OtherDeviceAtOrdinalIsRejectedWithBothNames) {
  cuda::FakeDriver driver;
  EXPECT_TRUE(CheckDevice(driver, 0, "GPU-fake").ok());
  const absl::Status refused = CheckDevice(driver, 0, "GPU-other");
  EXPECT_TRUE(IsRefusal(refused, Reason::kNotFound)) << refused;
  EXPECT_EQ(refused.message(), "no device GPU-other at CUDA's ordinal 0, which is GPU-fake");
  EXPECT_EQ(GetErrorDetails(refused)->metadata.at("found"), "GPU-fake");
}

TEST(DeviceIdentityTest, DeviceWithoutUuidIsDriverError) {
  cuda::FakeDriver driver;
  driver.failing = "DeviceUuid";
  EXPECT_TRUE(IsRefusal(CheckDevice(driver, 0, "GPU-fake"), Reason::kDriver));
}

}  // namespace
}  // namespace berth
