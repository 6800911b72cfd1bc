#include "common/cuda/ipc_mapping.h"

#include <gtest/gtest.h>

#include <utility>

#include <berth/error.h>

#include "common/cuda/testing/fake_driver.h"

namespace berth::cuda {
namespace {

class IpcMappingTest : public ::testing::Test {
 protected:
  IpcMappingTest() {
    handle_ = *driver_.GetIpcHandle(*driver_.Allocate(MiB(2)));
    driver_.current = other_;
    driver_.calls.clear();
  }

  FakeDriver driver_;
  IpcHandle handle_;
  const Context other_ = reinterpret_cast<Context>(0x77);
};

TEST_F(IpcMappingTest, OpenUsesPrimaryContextAndRestoresCallers) {
  {
    const absl::StatusOr<IpcMapping> mapping = IpcMapping::Open(driver_, handle_, 0);
    ASSERT_TRUE(mapping.ok()) << mapping.status();
    EXPECT_EQ(driver_.opened.size(), 1u);
    EXPECT_EQ(driver_.contexts, 1);
    EXPECT_EQ(driver_.current, other_);
  }
  EXPECT_TRUE(driver_.opened.empty());
  EXPECT_EQ(driver_.contexts, 0);
  EXPECT_EQ(driver_.current, other_);
}

TEST_F(IpcMappingTest, MovedFromMappingClosesNothing) {
  absl::StatusOr<IpcMapping> mapping = IpcMapping::Open(driver_, handle_, 0);
  ASSERT_TRUE(mapping.ok());
  const IpcMapping moved = *std::move(mapping);
  EXPECT_EQ(driver_.opened.size(), 1u);
  EXPECT_NE(moved.ptr(), 0u);
}

TEST_F(IpcMappingTest, FailureAtAnyStepLeavesNothing) {
  for (const char* const step : {"RetainPrimaryContext", "SetCurrentContext", "OpenIpcHandle"}) {
    driver_.failing = step;
    EXPECT_FALSE(IpcMapping::Open(driver_, handle_, 0).ok()) << step;
    EXPECT_TRUE(driver_.opened.empty()) << step;
    EXPECT_EQ(driver_.contexts, 0) << step;
  }
}

TEST_F(IpcMappingTest, OwnMemoryIsReportedAsOwn) {
  driver_.failing = "OpenIpcHandle";
  driver_.failing_code = 201;
  const absl::Status own = IpcMapping::Open(driver_, handle_, 0).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(own)) << own;
}

}  // namespace
}  // namespace berth::cuda
