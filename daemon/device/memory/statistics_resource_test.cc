#include "daemon/device/memory/statistics_resource.h"

#include <gtest/gtest.h>

#include "daemon/device/memory/testing/fake_resource.h"

namespace berth {
namespace {

class StatisticsResourceTest : public ::testing::Test {
 protected:
  FakeResource* const inner_ = new FakeResource;
  StatisticsResource resource_ = StatisticsResource(std::unique_ptr<MemoryResource>(inner_));
};

TEST_F(StatisticsResourceTest, SuccessesAndFailuresAreCounted) {
  MemoryBlock first = *resource_.Allocate(MiB(2), "");
  MemoryBlock second = *resource_.Allocate(MiB(4), "");
  inner_->allocate_error = absl::InternalError("");
  EXPECT_FALSE(resource_.Allocate(MiB(2), "").ok());
  inner_->deallocate_error = absl::InternalError("");
  EXPECT_FALSE(resource_.Deallocate(first).ok());
  inner_->deallocate_error = absl::OkStatus();
  EXPECT_TRUE(resource_.Deallocate(first).ok());
  EXPECT_FALSE(resource_.Deallocate(first).ok()) << "it is gone";
  MemoryBlock back = *resource_.Adopt(*resource_.HandOver(second), "");
  EXPECT_TRUE(resource_.Deallocate(back).ok());
  EXPECT_FALSE(resource_.HandOver(second).ok());
  const MemoryStatistics statistics = resource_.statistics();
  EXPECT_EQ(statistics.allocations, 2u);
  EXPECT_EQ(statistics.failed_allocations, 1u);
  EXPECT_EQ(statistics.deallocations, 2u);
  EXPECT_EQ(statistics.failed_deallocations, 2u);
  EXPECT_EQ(statistics.handed_over, 1u);
  EXPECT_EQ(statistics.adopted, 1u);
  EXPECT_EQ(statistics.outstanding, Bytes(0));
  EXPECT_EQ(
      ToString(statistics),
      "made 2 (1 failed), handed over 1, adopted 1, freed 2 (2 failed), outstanding 0 B, at most 6 MiB");
}

TEST_F(StatisticsResourceTest, PeakIsLargestSimultaneousUse) {
  MemoryBlock first = *resource_.Allocate(MiB(4), "");
  EXPECT_TRUE(resource_.Deallocate(first).ok());
  MemoryBlock second = *resource_.Allocate(MiB(2), "");
  EXPECT_EQ(resource_.statistics().peak, MiB(4));
  inner_->allocate_error = absl::InternalError("");
  EXPECT_FALSE(resource_.Allocate(MiB(64), "").ok());
  EXPECT_EQ(resource_.statistics().peak, MiB(4)) << "what failed was never there";
  EXPECT_EQ(resource_.statistics().outstanding, MiB(2));
}

TEST_F(StatisticsResourceTest, LateFreedMemoryStaysOutstandingAndInPeak) {
  inner_->frees_late = true;
  MemoryBlock first = *resource_.Allocate(MiB(4), "");
  EXPECT_TRUE(resource_.Deallocate(first).ok());
  EXPECT_TRUE(resource_.Allocate(MiB(2), "").ok());
  EXPECT_EQ(resource_.statistics().peak, MiB(6));
  EXPECT_TRUE(resource_.Reap().ok());
  EXPECT_EQ(resource_.statistics().outstanding, MiB(2));
}

}  // namespace
}  // namespace berth
