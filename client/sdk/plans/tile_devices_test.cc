#include "client/sdk/plans/tile_devices.h"

#include <berth/error.h>

#include "common/cuda/testing/fake_driver.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

std::vector<TileDevice> Two(const std::string& uuid) {
  return {{.cuda = true, .uuid = uuid}, {.cuda = true, .uuid = uuid, .ordinal = 7}};
}

TEST(TileDevicesTest, HostDevicesNeedNoDriver) {
  absl::StatusOr<TileDevices> devices =
      TileDevices::Hold({{.uuid = "HOST-3", .ordinal = 3}}, []() -> absl::StatusOr<cuda::Driver*> {
        ADD_FAILURE() << "the driver was asked for";
        return absl::InternalError("no");
      });
  ASSERT_TRUE(devices.ok());
  EXPECT_EQ(devices->ordinal(0), 3);
  EXPECT_TRUE(devices->Enter(0).ok());
  EXPECT_TRUE(devices->Leave(0).ok());
}

TEST(TileDevicesTest, ContextIsHeldOncePerDeviceAndReleased) {
  cuda::FakeDriver driver;
  {
    absl::StatusOr<TileDevices> devices = TileDevices::Hold(Two("GPU-fake"), [&] { return &driver; });
    ASSERT_TRUE(devices.ok()) << devices.status();
    EXPECT_EQ(driver.contexts, 1);
    EXPECT_EQ(devices->ordinal(1), 0) << "this process's own";
    EXPECT_TRUE(devices->Enter(1).ok());
    EXPECT_EQ(driver.current, driver.kPrimary);
    driver.calls.clear();
    EXPECT_TRUE(devices->Leave(1).ok());
    EXPECT_EQ(driver.calls.front(), "SynchronizeContext");
    EXPECT_EQ(driver.current, nullptr);
  }
  EXPECT_EQ(driver.contexts, 0);
}

TEST(TileDevicesTest, UnusableDeviceIsRejectedWithoutHeldContexts) {
  cuda::FakeDriver driver;
  EXPECT_TRUE(
      IsRefusal(TileDevices::Hold({Two("GPU-fake")[0], Two("GPU-none")[0]}, [&] { return &driver; }).status(),
                Reason::kNotFound));
  EXPECT_EQ(driver.contexts, 0);
  driver.failing = "RetainPrimaryContext";
  EXPECT_TRUE(
      IsRefusal(TileDevices::Hold(Two("GPU-fake"), [&] { return &driver; }).status(), Reason::kDriver));
  EXPECT_EQ(driver.contexts, 0);
}

TEST(TileDevicesTest, FailedQueuedWorkFailsTile) {
  cuda::FakeDriver driver;
  absl::StatusOr<TileDevices> devices = TileDevices::Hold(Two("GPU-fake"), [&] { return &driver; });
  ASSERT_TRUE(devices->Enter(0).ok());
  driver.failing = "SynchronizeContext";
  EXPECT_TRUE(IsRefusal(devices->Leave(0), Reason::kDriver));
  EXPECT_EQ(driver.current, nullptr);
}

}  // namespace
}  // namespace berth::internal
