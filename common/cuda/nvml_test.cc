#include "common/cuda/nvml.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <berth/error.h>

namespace berth::cuda {
namespace {

TEST(NvmlTest, AbsentNvmlIsRefusedAsUnsupported) {
  const absl::StatusOr<Nvml*> nvml = Nvml::Get();
  if (nvml.ok()) GTEST_SKIP() << "this machine has NVML";
  EXPECT_EQ(getenv("BERTH_REQUIRE_CUDA"), nullptr) << nvml.status();
  EXPECT_TRUE(IsRefusal(nvml.status(), Reason::kUnsupported)) << nvml.status();
}

TEST(NvmlTest, NvmlDescribesDevicesByUuid) {
  const absl::StatusOr<Nvml*> nvml = Nvml::Get();
  if (!nvml.ok()) GTEST_SKIP() << nvml.status();
  const std::vector<std::string> uuids = *(*nvml)->Uuids();
  ASSERT_FALSE(uuids.empty());
  for (uint32_t index = 0; index < uuids.size(); ++index) {
    const std::string& uuid = uuids[index];
    EXPECT_EQ(*(*nvml)->Index(uuid), index);
    EXPECT_FALSE((*nvml)->Name(uuid)->empty());
    const Nvml::Memory memory = *(*nvml)->GetMemory(uuid);
    EXPECT_GE(memory.total, memory.free);
    EXPECT_TRUE((*nvml)->Processes(uuid).ok());
  }
  EXPECT_TRUE(IsRefusal((*nvml)->GetMemory("GPU-none").status(), Reason::kDriver));
  EXPECT_TRUE(IsRefusal((*nvml)->Index("GPU-none").status(), Reason::kDriver));
}

}  // namespace
}  // namespace berth::cuda
