#include <berth/gpu_capability.h>

#include "gtest/gtest.h"

namespace berth {
namespace {

TEST(GpuCapabilityTest, NewerDevicesRoundDownOldTakeLeast) {
  EXPECT_EQ(NvrtcArchitecture({12, 0}), "compute_90");
  EXPECT_EQ(NvrtcArchitecture({10, 3}), "compute_90");
  EXPECT_EQ(NvrtcArchitecture({9, 0}), "compute_90");
  EXPECT_EQ(NvrtcArchitecture({8, 9}), "compute_89");
  EXPECT_EQ(NvrtcArchitecture({8, 7}), "compute_80");
  EXPECT_EQ(NvrtcArchitecture({8, 6}), "compute_86");
  EXPECT_EQ(NvrtcArchitecture({8, 0}), "compute_80");
  EXPECT_EQ(NvrtcArchitecture({7, 5}), "compute_75");
  EXPECT_EQ(NvrtcArchitecture({7, 2}), "compute_70");
  EXPECT_EQ(NvrtcArchitecture({6, 1}), "compute_60");
  EXPECT_EQ(NvrtcArchitecture({5, 0}), "compute_60");
  EXPECT_EQ(NvrtcArchitecture({}), "compute_60");
}

TEST(GpuCapabilityTest, FeaturesFollowMajorNumber) {
  const GpuCapability volta{7, 0}, ampere{8, 0}, hopper{9, 0};
  EXPECT_FALSE(GpuCapability().tensor_cores());
  EXPECT_TRUE(volta.tensor_cores());
  EXPECT_FALSE(volta.fp64_tensor_cores() || volta.async_copy());
  EXPECT_TRUE(ampere.fp64_tensor_cores() && ampere.async_copy());
  EXPECT_FALSE(ampere.cluster_launch() || ampere.tensor_memory_accelerator());
  EXPECT_TRUE(hopper.cluster_launch() && hopper.tensor_memory_accelerator());
}

}  // namespace
}  // namespace berth
