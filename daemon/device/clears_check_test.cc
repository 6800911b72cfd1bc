#include "daemon/device/clears_check.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>

#include <map>
#include <string>

#include "common/cuda/fake_driver.h"
#include "common/status_macros.h"

namespace berth {
namespace {

// Two pieces of it.
constexpr Bytes kBytes = MiB(128);

// A device whose memory is all zeroes, but for the first word of each read while `leftovers` last.
class LookedAtDriver : public cuda::FakeDriver {
 public:
  absl::Status CopyToHost(std::span<std::byte> to, cuda::DevicePointer from) override {
    BERTH_RETURN_IF_ERROR(FakeDriver::CopyToHost(to, from));
    ::memset(to.data(), 0, to.size());
    if (leftovers > 0) to[leftovers-- % 8] = std::byte{0xA5};
    looked_at += to.size();
    return absl::OkStatus();
  }
  absl::StatusOr<int> Attribute(int ordinal, cuda::DeviceAttribute attribute) override {
    if (attribute == cuda::DeviceAttribute::kManyContexts && exclusive) return 0;
    return FakeDriver::Attribute(ordinal, attribute);
  }

  int leftovers = 0;
  uint64_t looked_at = 0;
  bool exclusive = false;
};

class ClearsCheckTest : public ::testing::Test {
 protected:
  // Runs the check. Expects it to leave nothing behind.
  ClearsFinding Check() {
    const ClearsFinding finding = CheckClears(driver_, 0, kBytes, [this] {
      ++looks_in_context_;
      EXPECT_EQ(driver_.contexts, 1);
      EXPECT_TRUE(driver_.nothing_left());
    });
    EXPECT_TRUE(driver_.nothing_left());
    EXPECT_EQ(driver_.contexts, 0);
    return finding;
  }

  LookedAtDriver driver_;
  int looks_in_context_ = 0;
};

TEST_F(ClearsCheckTest, ZeroesFromEndToEndAreClear) {
  const ClearsFinding finding = Check();
  EXPECT_EQ(finding.outcome, ClearsOutcome::kClear);
  EXPECT_STREQ(finding.detail, "no stale word seen in 128 MiB");
  EXPECT_EQ(driver_.looked_at, kBytes.count());
  EXPECT_EQ(looks_in_context_, 1);
}

TEST_F(ClearsCheckTest, AnyOtherWordIsStale) {
  driver_.leftovers = 3;
  const ClearsFinding finding = Check();
  EXPECT_EQ(finding.outcome, ClearsOutcome::kStale);
  EXPECT_STREQ(finding.detail, "3 stale words seen in 128 MiB");
}

TEST_F(ClearsCheckTest, WhatIsWrittenIsGivenBackBeforeOthersAreMade) {
  Check();
  // Two pieces filled, two more looked at: by then the first two are unmapped.
  std::map<std::string, int> seen;
  for (const std::string& call : driver_.calls) {
    ++seen[call];
    if (call == "CreateMemory" && seen[call] == 3) {
      EXPECT_EQ(seen["Fill"], 2);
      EXPECT_EQ(seen["SynchronizeContext"], 1);
      EXPECT_EQ(seen["UnmapMemory"], 2);
    }
  }
  EXPECT_EQ(seen["CreateMemory"], 4);
}

TEST_F(ClearsCheckTest, ADeviceForOneProcessAtATimeIsLeftAlone) {
  driver_.exclusive = true;
  const ClearsFinding finding = Check();
  EXPECT_EQ(finding.outcome, ClearsOutcome::kNotTried);
  EXPECT_STREQ(finding.detail, "not tried: the device is for one process at a time");
}

TEST_F(ClearsCheckTest, ACallThatFailsIsNoFinding) {
  for (const char* const step :
       {"RetainPrimaryContext", "CreateMemory", "MapMemory", "Fill", "SynchronizeContext", "CopyToHost"}) {
    driver_.failing = step;
    const ClearsFinding finding = Check();
    EXPECT_EQ(finding.outcome, ClearsOutcome::kNotTried) << step;
    EXPECT_NE(std::string(finding.detail).find(step), std::string::npos) << finding.detail;
  }
}

TEST(ClearsNotTriedTest, ALongReasonIsCutAndEnds) {
  const ClearsFinding finding = ClearsNotTried(std::string(1000, 'x'));
  EXPECT_LT(strlen(finding.detail), sizeof(finding.detail));
  EXPECT_GT(strlen(finding.detail), sizeof(finding.detail) / 2);
}

TEST(ClearsCheckCudaTest, TheDriverOfThisMachineClears) {
  const absl::StatusOr<cuda::Driver*> driver = cuda::Driver::Get();
  if (!driver.ok()) {
    const char* const required = getenv("BERTH_REQUIRE_CUDA");
    ASSERT_TRUE(required == nullptr || strcmp(required, "1") != 0) << driver.status();
    GTEST_SKIP() << driver.status();
  }
  const ClearsFinding finding = CheckClears(**driver, 0, kClearsCheckBytes, [] {});
  EXPECT_EQ(finding.outcome, ClearsOutcome::kClear) << finding.detail;
}

}  // namespace
}  // namespace berth
