#include "client/sdk/memory/registered_memory.h"

#include <string>
#include <utility>

#include <berth/error.h>

#include "common/cuda/testing/fake_driver.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

const auto kOther = reinterpret_cast<cuda::Context>(7);

TEST(RegisteredMemoryTest, MemoryStaysRegisteredWithItsContext) {
  cuda::FakeDriver driver;
  driver.current = kOther;
  int page = 0;
  {
    absl::StatusOr<RegisteredMemory> made = RegisteredMemory::Register(driver, &page, Bytes(4), false);
    ASSERT_TRUE(made.ok()) << made.status();
    const RegisteredMemory memory = *std::move(made);
    EXPECT_EQ(memory.at(), reinterpret_cast<cuda::DevicePointer>(&page));
    EXPECT_EQ(driver.contexts, 1);
  }
  EXPECT_EQ(driver.contexts, 0);
  EXPECT_TRUE(driver.nothing_left());
}

TEST(RegisteredMemoryTest, RegistrationRestoresContextAndCaptureMode) {
  cuda::FakeDriver driver;
  driver.current = kOther;
  int page = 0;
  RegisteredMemory::Register(driver, &page, Bytes(4), false).IgnoreError();
  EXPECT_EQ(driver.current, kOther);
  EXPECT_EQ(driver.capture_mode, cuda::CaptureMode::kGlobal);
  EXPECT_EQ(driver.capture_mode_of.at("RegisterHostMemory"), cuda::CaptureMode::kRelaxed);
  EXPECT_EQ(driver.capture_mode_of.at("UnregisterHostMemory"), cuda::CaptureMode::kRelaxed);
}

TEST(RegisteredMemoryTest, FailedRegistrationLeavesNothing) {
  for (const char* const failing : {"CurrentDevice", "RetainPrimaryContext", "ExchangeCaptureMode",
                                    "SetCurrentContext", "RegisterHostMemory"}) {
    cuda::FakeDriver driver;
    driver.current = kOther;
    driver.failing = failing;
    int page = 0;
    const auto made = RegisteredMemory::Register(driver, &page, Bytes(4), true);
    EXPECT_TRUE(IsRefusal(made.status(), Reason::kDriver)) << failing;
    EXPECT_EQ(driver.contexts, 0) << failing;
    EXPECT_TRUE(driver.nothing_left()) << failing;
  }
}

}  // namespace
}  // namespace berth::internal
