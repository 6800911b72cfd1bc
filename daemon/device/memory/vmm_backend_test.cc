// Cases that only a fake driver can produce.

#include "daemon/device/memory/vmm_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <berth/error.h>

#include "common/cuda/testing/fake_driver.h"

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class VmmBackendTest : public ::testing::Test {
 protected:
  absl::Status Try(Bytes bytes) { return backend_->Allocate(bytes, "").status(); }

  cuda::FakeDriver driver_;
  std::unique_ptr<VmmBackend> backend_ = *VmmBackend::Open(driver_, 0);
};

TEST_F(VmmBackendTest, BlockIsCreatedExportedAndReleasedInOrder) {
  driver_.calls.clear();
  EXPECT_TRUE(Try(MiB(2)).ok());
  EXPECT_THAT(driver_.calls, ElementsAre("CreateMemory", "ExportFd", "ReleaseMemory"));
  EXPECT_TRUE(driver_.nothing_left());
}

TEST_F(VmmBackendTest, FailureAtAnyStepLeavesNothing) {
  for (const char* const step : {"CreateMemory", "ExportFd"}) {
    driver_.failing = step;
    const absl::Status status = Try(MiB(2));
    EXPECT_TRUE(IsRefusal(status, Reason::kDriver)) << step;
    EXPECT_EQ(GetErrorDetails(status)->metadata.at("call"), step);
    EXPECT_EQ(GetErrorDetails(status)->metadata.at("device"), "GPU-fake");
    EXPECT_TRUE(driver_.nothing_left()) << step;
    EXPECT_EQ(backend_->outstanding(), Bytes(0));
  }
}

TEST_F(VmmBackendTest, UnreleasedMemoryIsOutstandingUntilReap) {
  driver_.failing = "ReleaseMemory";
  EXPECT_TRUE(IsRefusal(Try(MiB(2)), Reason::kDriver));
  EXPECT_TRUE(IsRefusal(Try(MiB(4)), Reason::kDriver));
  EXPECT_EQ(backend_->outstanding(), MiB(6));
  const absl::Status failed = backend_->Reap();
  EXPECT_TRUE(IsRefusal(failed, Reason::kDriver)) << failed;
  EXPECT_EQ(GetErrorDetails(failed)->metadata.at("device"), "GPU-fake");
  EXPECT_EQ(backend_->outstanding(), MiB(6));
  driver_.failing.clear();
  driver_.calls.clear();
  EXPECT_TRUE(backend_->Reap().ok());
  EXPECT_THAT(driver_.calls, ElementsAre("ReleaseMemory", "ReleaseMemory"));
  EXPECT_EQ(backend_->outstanding(), Bytes(0));
}

TEST_F(VmmBackendTest, DriverOutOfMemoryNamesDeviceBytesAndCode) {
  driver_.failing = "CreateMemory";
  driver_.failing_code = 2;
  driver_.failing_name = "CUDA_ERROR_OUT_OF_MEMORY";
  const absl::Status status = Try(MiB(4));
  EXPECT_TRUE(IsRefusal(status, Reason::kOutOfMemory));
  EXPECT_THAT(std::string(status.message()), testing::AllOf(HasSubstr("GPU-fake"), HasSubstr("4194304"),
                                                            HasSubstr("CUDA_ERROR_OUT_OF_MEMORY")));
  EXPECT_EQ(GetErrorDetails(status)->metadata.at("driver_code"), "2");
}

TEST_F(VmmBackendTest, ImpossibleSizeIsRejectedWithoutDriverCall) {
  driver_.calls.clear();
  EXPECT_TRUE(IsRefusal(Try(GiB(2)), Reason::kOutOfMemory));
  EXPECT_TRUE(driver_.calls.empty());
}

}  // namespace
}  // namespace berth
