#include "common/cuda/device_mapping.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include <berth/error.h>

#include "common/cuda/testing/fake_driver.h"

namespace berth::cuda {
namespace {

using ::testing::ElementsAre;

TEST(DeviceMappingTest, MappingIsHeldAndReleased) {
  FakeDriver driver;
  {
    const auto mapping = DeviceMapping::Map(driver, 0, MiB(2), 0, /*read_only=*/false);
    ASSERT_TRUE(mapping.ok());
    EXPECT_NE(mapping->ptr(), 0);
    EXPECT_EQ(mapping->bytes(), MiB(2));
    EXPECT_THAT(driver.calls,
                ElementsAre("ImportFd", "ReserveAddress", "MapMemory", "SetAccess", "ReleaseMemory"));
    EXPECT_EQ(driver.access, Access::kReadWrite);
    EXPECT_TRUE(driver.allocations.empty());
  }
  EXPECT_TRUE(driver.nothing_left());
}

TEST(DeviceMappingTest, ReadOnlyMappingRequestsReadAccess) {
  FakeDriver driver;
  ASSERT_TRUE(DeviceMapping::Map(driver, 0, MiB(2), 0, /*read_only=*/true).ok());
  EXPECT_EQ(driver.access, Access::kReadOnly);
}

TEST(DeviceMappingTest, FailureAtAnyStepLeavesNothing) {
  for (const char* const step : {"ImportFd", "ReserveAddress", "MapMemory", "SetAccess"}) {
    FakeDriver driver;
    driver.failing = step;
    const auto mapping = DeviceMapping::Map(driver, 0, MiB(2), 0, false);
    EXPECT_TRUE(IsRefusal(mapping.status(), Reason::kDriver)) << step;
    EXPECT_TRUE(driver.nothing_left()) << step;
  }
}

TEST(DeviceMappingTest, MovedMappingIsUnmappedOnce) {
  FakeDriver driver;
  auto first = DeviceMapping::Map(driver, 0, MiB(2), 0, false);
  auto second = DeviceMapping::Map(driver, 0, MiB(2), 0, false);
  ASSERT_TRUE(first.ok() && second.ok());
  DeviceMapping moved = *std::move(first);
  moved = *std::move(second);
  EXPECT_EQ(driver.mapped.size(), 1);
  driver.calls.clear();
  EXPECT_TRUE(moved.Unmap().ok());
  EXPECT_TRUE(moved.Unmap().ok());
  EXPECT_THAT(driver.calls, ElementsAre("UnmapMemory", "FreeAddress"));
  EXPECT_TRUE(driver.nothing_left());
}

}  // namespace
}  // namespace berth::cuda
