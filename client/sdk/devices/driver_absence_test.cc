#include "client/sdk/devices/driver_absence.h"

#include <string>

#include <berth/error.h>

#include "common/cuda/driver.h"
#include "common/cuda/driver_code.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

absl::Status NoCuda(const std::string& why) {
  return Refuse(Reason::kUnsupported, "no {capability}: {why}", {{"capability", "CUDA"}, {"why", why}});
}

TEST(DriverAbsenceTest, MissingDriverDiffersFromMissingDevice) {
  EXPECT_EQ(AbsenceOfDriver(NoCuda("libcuda.so.1: cannot open"))->kind, Absence::Kind::kNoDriver);
  EXPECT_EQ(AbsenceOfDriver(NoCuda("libcuda.so.1: cannot open"))->why, "no CUDA: libcuda.so.1: cannot open");
  EXPECT_EQ(AbsenceOfDriver(NoCuda(cuda::kNoDeviceAtAll))->kind, Absence::Kind::kNoDevice);
}

TEST(DriverAbsenceTest, PresentOrFailingDriverIsNotAbsent) {
  EXPECT_FALSE(AbsenceOfDriver(absl::OkStatus()).has_value());
  EXPECT_FALSE(AbsenceOfDriver(cuda::DriverError("cuInit", 304, "CUDA_ERROR_OPERATING_SYSTEM")).has_value());
}

TEST(DriverAbsenceTest, DriverReasonPrecedesHostMemory) {
  EXPECT_EQ(AbsenceOnHostMemory(NoCuda("none")).kind, Absence::Kind::kNoDriver);
  EXPECT_EQ(AbsenceOnHostMemory(NoCuda("none")).why, "no CUDA: none");
  for (const absl::Status& driver :
       {absl::OkStatus(), cuda::DriverError("cuInit", 304, "CUDA_ERROR_OPERATING_SYSTEM")}) {
    EXPECT_EQ(AbsenceOnHostMemory(driver).kind, Absence::Kind::kNoDevice);
    EXPECT_EQ(AbsenceOnHostMemory(driver).why, "the node's devices are host memory");
  }
}

}  // namespace
}  // namespace berth::internal
