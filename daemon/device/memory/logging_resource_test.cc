#include "daemon/device/memory/logging_resource.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/cuda/driver.h"
#include "daemon/device/memory/testing/fake_resource.h"

namespace berth {
namespace {

// Rejects every record.
class FullSink : public MemoryLogSink {
 public:
  absl::Status Append(const MemoryRecord&) override { return absl::ResourceExhaustedError("full"); }
};

class LoggingResourceTest : public ::testing::Test {
 protected:
  std::vector<MemoryRecord> records() const { return sink_.records(); }

  FakeResource* const inner_ = new FakeResource;
  MemoryLogRing sink_ = MemoryLogRing(16);
  LoggingResource resource_ = LoggingResource(std::unique_ptr<MemoryResource>(inner_), &sink_);
};

TEST_F(LoggingResourceTest, AllocationAndReleaseAreLogged) {
  MemoryBlock block = *resource_.Allocate(MiB(2), "mine");
  const uint64_t generation = block.generation;
  ASSERT_TRUE(resource_.Deallocate(block).ok());
  ASSERT_EQ(records().size(), 2);
  for (const MemoryRecord& record : records()) {
    EXPECT_EQ(record.device, "HOST-0");
    EXPECT_EQ(record.generation, generation);
    EXPECT_EQ(record.bytes, MiB(2));
    EXPECT_EQ(record.tag, "mine");
    EXPECT_EQ(record.result, "OK");
    EXPECT_EQ(record.message, "");
  }
  EXPECT_EQ(records()[0].action, MemoryAction::kAllocate);
  EXPECT_EQ(records()[1].action, MemoryAction::kDeallocate);
  EXPECT_LE(records()[0].time, records()[1].time);
}

TEST_F(LoggingResourceTest, HandOverAndAdoptionAreLogged) {
  MemoryBlock block = *resource_.Allocate(MiB(2), "mine");
  MemoryBlock back = *resource_.Adopt(*resource_.HandOver(block), "back");
  ASSERT_EQ(records().size(), 3);
  EXPECT_EQ(records()[1].action, MemoryAction::kHandOver);
  EXPECT_EQ(records()[1].generation, block.generation);
  EXPECT_EQ(records()[2].action, MemoryAction::kAdopt);
  EXPECT_EQ(records()[2].generation, back.generation);
  EXPECT_EQ(records()[2].tag, "back");
}

TEST_F(LoggingResourceTest, OrderRisesOverAllResources) {
  LoggingResource other(std::make_unique<FakeResource>(), &sink_);
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(resource_.Allocate(MiB(2), "").ok());
    EXPECT_TRUE(other.Reap().ok());
  }
  ASSERT_EQ(records().size(), 10);
  for (size_t i = 1; i < records().size(); ++i) EXPECT_GT(records()[i].order, records()[i - 1].order);
}

TEST_F(LoggingResourceTest, FailuresAreLoggedWithReason) {
  inner_->allocate_error = cuda::DriverError("cuMemAlloc", 2, "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_FALSE(resource_.Allocate(MiB(2), "mine").ok());
  EXPECT_EQ(records()[0].result, "OUT_OF_MEMORY");
  EXPECT_EQ(records()[0].message, "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2)");
  EXPECT_EQ(records()[0].generation, 0u);
  EXPECT_EQ(records()[0].bytes, MiB(2));
  inner_->allocate_error = absl::OkStatus();
  MemoryBlock block = *resource_.Allocate(MiB(2), "mine");
  ASSERT_TRUE(resource_.Deallocate(block).ok());
  EXPECT_FALSE(resource_.Deallocate(block).ok());
  EXPECT_EQ(records()[3].result, "STALE");
  EXPECT_EQ(records()[3].generation, block.generation);
  inner_->reap_error = absl::UnavailableError("later");
  EXPECT_FALSE(resource_.Reap().ok());
  EXPECT_EQ(records()[4].action, MemoryAction::kReap);
  EXPECT_EQ(records()[4].result, "UNAVAILABLE");
  EXPECT_EQ(records()[4].generation, 0u);
}

TEST_F(LoggingResourceTest, LongMessageIsCutBetweenCharacters) {
  // The 256th byte is the first byte of a two-byte character.
  const std::string head(255, 'x');
  inner_->allocate_error = absl::InternalError(head + "\u00f6 and more");
  EXPECT_FALSE(resource_.Allocate(MiB(2), "").ok());
  EXPECT_EQ(records()[0].message, head + "\u2026");
}

TEST_F(LoggingResourceTest, FullSinkIsCountedAndChangesNothing) {
  FullSink full;
  LoggingResource resource(std::make_unique<FakeResource>(), &full);
  MemoryBlock block = *resource.Allocate(MiB(2), "");
  EXPECT_TRUE(resource.Deallocate(block).ok());
  EXPECT_EQ(resource.dropped_records(), 2u);
  EXPECT_EQ(resource.outstanding(), Bytes(0));
  EXPECT_EQ(resource_.dropped_records(), 0u);
}

TEST(MemoryLogRingTest, RingKeepsLatestRecords) {
  MemoryLogRing ring(3);
  for (uint64_t i = 1; i <= 5; ++i) EXPECT_TRUE(ring.Append({.order = i}).ok());
  ASSERT_EQ(ring.records().size(), 3);
  EXPECT_EQ(ring.records().front().order, 3u);
  EXPECT_EQ(ring.records().back().order, 5u);
}

TEST(MemoryRecordTest, RecordIsReadableLine) {
  MemoryRecord record = {.order = 7,
                         .time = absl::UnixEpoch(),
                         .action = MemoryAction::kAllocate,
                         .device = "HOST-0",
                         .generation = 3,
                         .bytes = MiB(2),
                         .tag = "block 12",
                         .result = "OK"};
  EXPECT_THAT(ToString(record), ::testing::EndsWith(" HOST-0 allocate 3 of 2097152 bytes (block 12): OK"));
  record = {
      .order = 8, .action = MemoryAction::kReap, .device = "HOST-0", .result = "DRIVER", .message = "no"};
  EXPECT_THAT(ToString(record), ::testing::StartsWith("8 "));
  EXPECT_THAT(ToString(record), ::testing::EndsWith(" HOST-0 reap: DRIVER: no"));
}

}  // namespace
}  // namespace berth
