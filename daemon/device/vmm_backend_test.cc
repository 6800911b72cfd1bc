// The conformance suite on a real GPU, where there is one, and what only a fake driver can be made to do.

#include "daemon/device/vmm_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>

#include "common/cuda/device_mapping.h"
#include "common/cuda/fake_driver.h"
#include "common/error.h"
#include "common/status_macros.h"
#include "daemon/device/memory_resource_conformance.h"

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Looks into blocks through a mapping and the primary context of this process: the backend itself has none.
class CudaHarness : public ResourceHarness {
 public:
  absl::StatusOr<std::unique_ptr<MemoryResource>> Open() override {
    BERTH_ASSIGN_OR_RETURN(driver_, cuda::Driver::Get());
    return VmmBackend::Open(*driver_, 0);
  }

  absl::StatusOr<std::string> Read(const MemoryBlock& block, uint64_t offset, size_t size) override {
    BERTH_RETURN_IF_ERROR(EnterContext());
    BERTH_ASSIGN_OR_RETURN(const cuda::DeviceMapping mapping,
                           cuda::DeviceMapping::Map(*driver_, block.fd.get(), block.bytes, 0, true));
    std::string text(size, '?');
    BERTH_RETURN_IF_ERROR(
        driver_->CopyToHost(std::as_writable_bytes(std::span(text)), mapping.ptr() + offset));
    return text;
  }

  absl::Status Write(const MemoryBlock& block, uint64_t offset, absl::string_view text) override {
    BERTH_RETURN_IF_ERROR(EnterContext());
    BERTH_ASSIGN_OR_RETURN(const cuda::DeviceMapping mapping,
                           cuda::DeviceMapping::Map(*driver_, block.fd.get(), block.bytes, 0, false));
    BERTH_RETURN_IF_ERROR(
        driver_->CopyToDevice(mapping.ptr() + offset, std::as_bytes(std::span(text.data(), text.size()))));
    return driver_->SynchronizeContext();
  }

 private:
  // Once: the primary context stays until the process ends.
  absl::Status EnterContext() {
    if (context_ != nullptr) return absl::OkStatus();
    BERTH_ASSIGN_OR_RETURN(context_, driver_->RetainPrimaryContext(0));
    return driver_->SetCurrentContext(context_);
  }

  cuda::Driver* driver_ = nullptr;
  cuda::Context context_ = nullptr;
};

CudaHarness harness;
INSTANTIATE_TEST_SUITE_P(CudaVmm, MemoryResourceConformance, ::testing::Values(&harness));

class VmmBackendTest : public ::testing::Test {
 protected:
  absl::Status Try(Bytes bytes) { return backend_->Allocate(bytes, "").status(); }

  cuda::FakeDriver driver_;
  std::unique_ptr<VmmBackend> backend_ = *VmmBackend::Open(driver_, 0);
};

TEST_F(VmmBackendTest, CreatesExportsAndLetsGoOfItsOwnHandleInThisOrder) {
  driver_.calls.clear();
  EXPECT_TRUE(Try(MiB(2)).ok());
  EXPECT_THAT(driver_.calls, ElementsAre("CreateMemory", "ExportFd", "ReleaseMemory"));
  EXPECT_TRUE(driver_.nothing_left());
}

TEST_F(VmmBackendTest, NothingIsLeftWhicheverStepFails) {
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

TEST_F(VmmBackendTest, WhatCouldNotBeReleasedIsOutstandingUntilItIsReaped) {
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

TEST_F(VmmBackendTest, TheDriversOutOfMemoryNamesDeviceBytesAndCode) {
  driver_.failing = "CreateMemory";
  driver_.failing_code = 2;
  driver_.failing_name = "CUDA_ERROR_OUT_OF_MEMORY";
  const absl::Status status = Try(MiB(4));
  EXPECT_TRUE(IsRefusal(status, Reason::kOutOfMemory));
  EXPECT_THAT(std::string(status.message()), testing::AllOf(HasSubstr("GPU-fake"), HasSubstr("4194304"),
                                                            HasSubstr("CUDA_ERROR_OUT_OF_MEMORY")));
  EXPECT_EQ(GetErrorDetails(status)->metadata.at("driver_code"), "2");
}

TEST_F(VmmBackendTest, WhatTheDeviceNeverHasIsNotAskedOfTheDriver) {
  driver_.calls.clear();
  EXPECT_TRUE(IsRefusal(Try(GiB(2)), Reason::kOutOfMemory));
  EXPECT_TRUE(driver_.calls.empty());
}

}  // namespace
}  // namespace berth

int main(int argc, char** argv) { return berth::RunConformance(argc, argv, berth::harness); }
