#include "daemon/device/memory/memory_scrub_check.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>

#include <map>
#include <string>

#include "common/cuda/testing/fake_driver.h"
#include "common/status_macros.h"

namespace berth {
namespace {

// Two pieces of the check.
constexpr Bytes kBytes = MiB(128);

// A device whose memory reads as zeroes, except for the first word of each read while `leftovers` last.
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

class MemoryScrubCheckTest : public ::testing::Test {
 protected:
  // Runs the check. Expects that it leaves no memory and no context behind.
  ScrubFinding Check() {
    const ScrubFinding finding = CheckScrub(driver_, 0, kBytes, [this] {
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

TEST_F(MemoryScrubCheckTest, ZeroedMemoryIsClear) {
  const ScrubFinding finding = Check();
  EXPECT_EQ(finding.outcome, ScrubOutcome::kClear);
  EXPECT_STREQ(finding.detail, "found no stale word in 128 MiB");
  EXPECT_EQ(driver_.looked_at, kBytes.count());
  EXPECT_EQ(looks_in_context_, 1);
}

TEST_F(MemoryScrubCheckTest, NonZeroMemoryIsStale) {
  driver_.leftovers = 3;
  const ScrubFinding finding = Check();
  EXPECT_EQ(finding.outcome, ScrubOutcome::kStale);
  EXPECT_STREQ(finding.detail, "found 3 stale words in 128 MiB");
}

TEST_F(MemoryScrubCheckTest, WrittenMemoryIsReleasedBeforeOthersAreMade) {
  Check();
  // Two pieces filled, two more read: by then the first two are unmapped.
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

TEST_F(MemoryScrubCheckTest, ExclusiveDeviceIsNotTested) {
  driver_.exclusive = true;
  const ScrubFinding finding = Check();
  EXPECT_EQ(finding.outcome, ScrubOutcome::kNotTried);
  EXPECT_STREQ(finding.detail, "not tried: the device's compute mode admits one process at a time");
}

TEST_F(MemoryScrubCheckTest, FailedCallIsNoFinding) {
  for (const char* const step :
       {"RetainPrimaryContext", "CreateMemory", "MapMemory", "Fill", "SynchronizeContext", "CopyToHost"}) {
    driver_.failing = step;
    const ScrubFinding finding = Check();
    EXPECT_EQ(finding.outcome, ScrubOutcome::kNotTried) << step;
    EXPECT_NE(std::string(finding.detail).find(step), std::string::npos) << finding.detail;
  }
}

TEST(ScrubNotTriedTest, LongReasonIsTruncated) {
  const ScrubFinding finding = ScrubNotTried(std::string(1000, 'x'));
  EXPECT_LT(strlen(finding.detail), sizeof(finding.detail));
  EXPECT_GT(strlen(finding.detail), sizeof(finding.detail) / 2);
}

TEST(MemoryScrubCheckCudaTest, DriverOfThisMachineScrubsMemory) {
  const absl::StatusOr<cuda::Driver*> driver = cuda::Driver::Get();
  if (!driver.ok()) {
    const char* const required = getenv("BERTH_REQUIRE_CUDA");
    ASSERT_TRUE(required == nullptr || strcmp(required, "1") != 0) << driver.status();
    GTEST_SKIP() << driver.status();
  }
  const ScrubFinding finding = CheckScrub(**driver, 0, kMemoryScrubBytes, [] {});
  EXPECT_EQ(finding.outcome, ScrubOutcome::kClear) << finding.detail;
}

}  // namespace
}  // namespace berth
