#include "daemon/core/memory/warm_block_cache.h"

#include "gtest/gtest.h"

namespace berth::core {
namespace {

TEST(WarmBlockCacheTest, MadeBlockIsTakenBeforePendingOldestFirst) {
  WarmBlockCache cache(2);
  cache.RecordAsked(Bytes(4));
  EXPECT_FALSE(cache.Find(Bytes(4)).has_value());
  cache.Put(Bytes(4), 1, BlockId(11), /*made=*/false);
  cache.Put(Bytes(4), 2, BlockId(12), /*made=*/true);
  cache.Put(Bytes(4), 3, BlockId(13), /*made=*/true);
  EXPECT_EQ(cache.Find(Bytes(4)), BlockId(12));
  EXPECT_EQ(cache.Count(Bytes(4)), 3);
  cache.Remove(Bytes(4), 2, BlockId(12));
  cache.Remove(Bytes(4), 3, BlockId(13));
  EXPECT_EQ(cache.Find(Bytes(4)), BlockId(11));
  cache.MarkMade(Bytes(4), 1, BlockId(11));
  EXPECT_EQ(cache.Find(Bytes(4)), BlockId(11));
  cache.Remove(Bytes(4), 1, BlockId(11));
  cache.Remove(Bytes(4), 1, BlockId(11));
  EXPECT_FALSE(cache.Find(Bytes(4)).has_value());
}

TEST(WarmBlockCacheTest, WarmBlockServesExactSizeOnly) {
  WarmBlockCache cache(2);
  cache.RecordAsked(Bytes(8));
  cache.Put(Bytes(8), 1, BlockId(11), true);
  EXPECT_FALSE(cache.Find(Bytes(4)).has_value());
  EXPECT_FALSE(cache.Find(Bytes(16)).has_value());
}

TEST(WarmBlockCacheTest, LeastRecentSizeIsDroppedFirst) {
  WarmBlockCache cache(2);
  EXPECT_TRUE(cache.RecordAsked(Bytes(4)).empty());
  cache.Put(Bytes(4), 1, BlockId(11), true);
  EXPECT_TRUE(cache.RecordAsked(Bytes(8)).empty());
  cache.Put(Bytes(8), 2, BlockId(12), true);
  EXPECT_EQ(cache.All(), (std::vector<BlockId>{BlockId(11), BlockId(12)}));
  EXPECT_TRUE(cache.RecordAsked(Bytes(4)).empty());
  EXPECT_EQ(cache.All(), (std::vector<BlockId>{BlockId(12), BlockId(11)}));
  EXPECT_EQ(cache.RecordAsked(Bytes(16)), std::vector<BlockId>{BlockId(12)});
}

TEST(WarmBlockCacheTest, BlockOfUncachedSizeIsListedFirst) {
  WarmBlockCache cache(1);
  cache.RecordAsked(Bytes(4));
  cache.Put(Bytes(4), 1, BlockId(11), true);
  cache.Put(Bytes(8), 2, BlockId(12), true);
  EXPECT_EQ(cache.All(), (std::vector<BlockId>{BlockId(12), BlockId(11)}));
}

}  // namespace
}  // namespace berth::core
