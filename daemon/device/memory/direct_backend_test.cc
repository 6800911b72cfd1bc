// Cases that only a fake driver can produce.

#include "daemon/device/memory/direct_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <berth/error.h>

#include "common/cuda/testing/fake_driver.h"

namespace berth {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class DirectBackendTest : public ::testing::Test {
 protected:
  cuda::FakeDriver driver_;
  std::unique_ptr<DirectBackend> backend_ = *DirectBackend::Open(driver_, 0);
};

TEST_F(DirectBackendTest, ContextEndsWithBackend) {
  EXPECT_EQ(driver_.contexts, 1);
  const auto block = backend_->Allocate(MiB(2), "");
  ASSERT_TRUE(block.ok());
  EXPECT_EQ(driver_.current, driver_.kPrimary);
  backend_.reset();
  EXPECT_EQ(driver_.contexts, 0);
  EXPECT_EQ(driver_.current, nullptr);
  EXPECT_TRUE(driver_.nothing_left()) << "with what was outstanding";
}

TEST_F(DirectBackendTest, BackendNeedsContext) {
  driver_.failing = "RetainPrimaryContext";
  EXPECT_TRUE(IsRefusal(DirectBackend::Open(driver_, 0).status(), Reason::kDriver));
}

TEST_F(DirectBackendTest, MemoryIsZeroedBeforeItIsHandedOut) {
  driver_.calls.clear();
  ASSERT_TRUE(backend_->Allocate(MiB(2), "").ok());
  EXPECT_THAT(driver_.calls,
              ElementsAre("SetCurrentContext", "Allocate", "Fill", "SynchronizeContext", "GetIpcHandle"));
}

TEST_F(DirectBackendTest, FailureAtAnyStepLeavesNothing) {
  for (const char* const step :
       {"SetCurrentContext", "Allocate", "Fill", "SynchronizeContext", "GetIpcHandle"}) {
    driver_.failing = step;
    const absl::Status status = backend_->Allocate(MiB(2), "").status();
    EXPECT_TRUE(IsRefusal(status, Reason::kDriver)) << step;
    EXPECT_EQ(GetErrorDetails(status)->metadata.at("call"), step);
    EXPECT_TRUE(driver_.nothing_left()) << step;
    EXPECT_EQ(backend_->outstanding(), Bytes(0)) << step;
  }
}

// Fails two calls at once.
class StuckDriver : public cuda::FakeDriver {
 public:
  absl::Status Free(cuda::DevicePointer pointer) override {
    if (stuck) return cuda::DriverError("Free", 1, "CUDA_ERROR_INVALID_VALUE");
    return FakeDriver::Free(pointer);
  }
  bool stuck = false;
};

TEST(DirectBackendReapTest, UnfreedMemoryIsOutstandingUntilReap) {
  StuckDriver driver;
  const auto backend = *DirectBackend::Open(driver, 0);
  driver.failing = "GetIpcHandle";
  driver.stuck = true;
  EXPECT_FALSE(backend->Allocate(MiB(2), "").ok());
  EXPECT_FALSE(backend->Allocate(MiB(4), "").ok());
  EXPECT_EQ(backend->outstanding(), MiB(6));
  EXPECT_TRUE(IsRefusal(backend->Reap(), Reason::kDriver));
  EXPECT_EQ(backend->outstanding(), MiB(6));
  driver.stuck = false;
  EXPECT_TRUE(backend->Reap().ok());
  EXPECT_EQ(backend->outstanding(), Bytes(0));
  EXPECT_TRUE(driver.nothing_left());
}

TEST_F(DirectBackendTest, FailedFreeStaysWithCallerAndIsRepeatable) {
  MemoryBlock block = *backend_->Allocate(MiB(2), "");
  driver_.failing = "Free";
  const absl::Status status = backend_->Deallocate(block);
  EXPECT_TRUE(IsRefusal(status, Reason::kDriver)) << status;
  EXPECT_EQ(GetErrorDetails(status)->metadata.at("device"), "GPU-fake");
  EXPECT_EQ(backend_->outstanding(), MiB(2));
  EXPECT_TRUE(block.handle.has_value());
  driver_.failing.clear();
  EXPECT_TRUE(backend_->Deallocate(block).ok());
  EXPECT_EQ(backend_->outstanding(), Bytes(0));
}

TEST_F(DirectBackendTest, AddressInUseIsRejectedAndBlockStays) {
  MemoryBlock block = *backend_->Allocate(MiB(2), "");
  driver_.next_pointer = block.address;
  driver_.calls.clear();
  const absl::Status status = backend_->Allocate(MiB(2), "").status();
  EXPECT_TRUE(IsRefusal(status, Reason::kDriver)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("in use"));
  EXPECT_THAT(driver_.calls, Not(Contains("Free")));
  EXPECT_EQ(backend_->outstanding(), MiB(2));
  EXPECT_TRUE(backend_->Deallocate(block).ok());
  EXPECT_EQ(backend_->outstanding(), Bytes(0));
}

TEST_F(DirectBackendTest, ImpossibleSizeIsRejectedWithoutDriverCall) {
  driver_.calls.clear();
  EXPECT_TRUE(IsRefusal(backend_->Allocate(GiB(2), "").status(), Reason::kOutOfMemory));
  EXPECT_TRUE(driver_.calls.empty());
}

TEST_F(DirectBackendTest, HandleIsNotPrinted) {
  const MemoryBlock block = *backend_->Allocate(MiB(2), "");
  EXPECT_EQ(testing::PrintToString(*block.handle), "<IPC handle>");
}

}  // namespace
}  // namespace berth
