#include "common/device_capability.h"

#include <gtest/gtest.h>

#include <map>

namespace berth {
namespace {

TEST(DeviceCapabilityTest, FeaturesFollowTheMajorNumber) {
  constexpr DeviceCapability kHopper{90}, kAmpere{80}, kVolta{70}, kPascal{61}, kNone{0};
  EXPECT_TRUE(kHopper.cluster_launch() && kHopper.tensor_memory_accelerator() && kHopper.fp64_tensor_cores());
  EXPECT_TRUE(kAmpere.tensor_cores() && kAmpere.fp64_tensor_cores() && kAmpere.async_copy());
  EXPECT_FALSE(kAmpere.cluster_launch() || kAmpere.tensor_memory_accelerator());
  EXPECT_TRUE(kVolta.tensor_cores());
  EXPECT_FALSE(kVolta.fp64_tensor_cores() || kVolta.async_copy());
  EXPECT_FALSE(kPascal.tensor_cores() || kNone.tensor_cores());
}

TEST(DeviceCapabilityTest, ArchitecturesAreRoundedDownToWhatToolkitsKnow) {
  for (const auto& [compute, architecture] :
       std::map<uint32_t, uint32_t>{{120, 90}, {100, 90}, {90, 90}, {89, 89}, {87, 80}, {86, 86}, {80, 80},
                                    {75, 75}, {72, 70},  {70, 70}, {61, 60}, {52, 60}, {0, 60}}) {
    EXPECT_EQ(DeviceCapability{compute}.nvrtc_architecture(), architecture) << compute;
  }
}

}  // namespace
}  // namespace berth
