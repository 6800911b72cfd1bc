#include "client/sdk/arena/arena_cache.h"

#include <deque>
#include <vector>

#include "gtest/gtest.h"

namespace berth::internal {
namespace {

constexpr auto kOne = static_cast<ArenaStream>(1);
constexpr auto kTwo = static_cast<ArenaStream>(2);
constexpr uint32_t kShift = 8;
constexpr ArenaSizeClasses kClasses(ArenaPolicy::kSizeClasses);
// 16 MiB, the bound of the whole cache.
constexpr uint64_t kLimit = (16 << 20) >> kShift;

class ArenaCacheTest : public ::testing::Test {
 protected:
  ArenaExtent* NewExtent(uint64_t granules) {
    ArenaExtent& extent = extents_.emplace_back();
    extent.size = granules;
    extent.size_class = kClasses.Ceil(granules);
    return &extent;
  }
  ArenaExtent* Push(uint64_t granules, ArenaStream stream) {
    ArenaExtent* const extent = NewExtent(granules);
    cache_.Push(extent, stream, &overflow_);
    return extent;
  }
  Bytes Cached() const {
    ArenaStats stats;
    cache_.AddTo(&stats);
    return stats.cached;
  }

  std::deque<ArenaExtent> extents_;
  std::vector<FreedExtent> overflow_;
  ArenaCache cache_{kClasses, kShift, kClasses.Ceil(kLimit)};
};

TEST_F(ArenaCacheTest, PopReturnsLatestFreeOfStream) {
  ArenaExtent* const first = Push(4, kOne);
  ArenaExtent* const second = Push(4, kOne);
  EXPECT_EQ(cache_.Pop(kOne, first->size_class), second);
  EXPECT_EQ(cache_.Pop(kOne, first->size_class), first);
  EXPECT_EQ(cache_.Pop(kOne, first->size_class), nullptr);
  EXPECT_TRUE(overflow_.empty());
}

TEST_F(ArenaCacheTest, CacheSeparatesStreamsAndSizes) {
  ArenaExtent* const extent = Push(4, kOne);
  EXPECT_EQ(cache_.Pop(kTwo, extent->size_class), nullptr);
  EXPECT_EQ(cache_.Pop(kOne, extent->size_class + 1), nullptr);
  EXPECT_EQ(cache_.Pop(kOne, extent->size_class), extent);
}

TEST_F(ArenaCacheTest, LongListOverflowsByHalf) {
  for (int i = 0; i < 65; ++i) Push(1, kOne);
  EXPECT_EQ(overflow_.size(), 33u);
  for (const FreedExtent& freed : overflow_) EXPECT_EQ(freed.stream, kOne);
  EXPECT_EQ(Cached(), Bytes(32 << kShift));
}

TEST_F(ArenaCacheTest, FullCacheOverflowsEntirely) {
  Push(kLimit / 2, kOne);
  Push(kLimit / 2, kTwo);
  EXPECT_TRUE(overflow_.empty());
  Push(1, kOne);
  EXPECT_EQ(overflow_.size(), 3u);
  EXPECT_EQ(Cached(), Bytes());
  EXPECT_EQ(cache_.Pop(kTwo, kClasses.Ceil(kLimit / 2)), nullptr);
}

TEST_F(ArenaCacheTest, ExtentAboveChunkSizeBypassesCache) {
  ArenaExtent* const extent = Push(kLimit + kLimit / 8, kOne);
  ASSERT_EQ(overflow_.size(), 1u);
  EXPECT_EQ(overflow_[0].extent, extent);
  EXPECT_EQ(cache_.Pop(kOne, extent->size_class), nullptr);
}

TEST_F(ArenaCacheTest, StreamBeyondLimitBypassesCacheUntilFlush) {
  for (int i = 0; i < 64; ++i) Push(1, static_cast<ArenaStream>(i));
  EXPECT_TRUE(overflow_.empty());
  const auto late = static_cast<ArenaStream>(64);
  Push(1, late);
  EXPECT_EQ(overflow_.size(), 1u);
  EXPECT_EQ(cache_.Pop(late, 0), nullptr);
  // The cache counts the allocation all the same.
  cache_.CountAllocation(late, extents_.back(), 100, /*hit=*/false);
  std::vector<FreedExtent> taken;
  cache_.TakeAll(&taken);
  EXPECT_EQ(taken.size(), 64u);
  ArenaExtent* const extent = Push(1, late);
  EXPECT_EQ(cache_.Pop(late, 0), extent);
  ArenaStats stats;
  cache_.AddTo(&stats);
  EXPECT_EQ(stats.allocations, 1u);
}

TEST_F(ArenaCacheTest, ForgettingStreamEmptiesItsList) {
  ArenaExtent* const one = Push(4, kOne);
  ArenaExtent* const two = Push(4, kTwo);
  std::vector<FreedExtent> taken;
  cache_.Forget(kOne, &taken);
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0].extent, one);
  EXPECT_EQ(cache_.Pop(kOne, one->size_class), nullptr);
  EXPECT_EQ(cache_.Pop(kTwo, two->size_class), two);
}

TEST_F(ArenaCacheTest, StatsOfCachesAreAdded) {
  // The extent is allocated through one cache and freed through the other.
  ArenaCache other(kClasses, kShift, kClasses.Ceil(kLimit));
  ArenaExtent* const extent = NewExtent(4);
  extent->requested = 1000;
  cache_.CountAllocation(kOne, *extent, 1000, /*hit=*/false);
  ArenaStats stats;
  cache_.AddTo(&stats);
  other.AddTo(&stats);
  EXPECT_EQ(stats.live, KiB(1));
  EXPECT_EQ(stats.live_requested, Bytes(1000));
  EXPECT_EQ(stats.misses, 1u);
  other.CountFree(kTwo, *extent);
  stats = {};
  cache_.AddTo(&stats);
  other.AddTo(&stats);
  EXPECT_EQ(stats.live, Bytes());
  EXPECT_EQ(stats.live_requested, Bytes());
  EXPECT_EQ(stats.allocations, 1u);
  EXPECT_EQ(stats.frees, 1u);
}

}  // namespace
}  // namespace berth::internal
