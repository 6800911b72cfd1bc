#include "daemon/core/warm_shelf.h"

#include "gtest/gtest.h"

namespace berth::core {
namespace {

TEST(WarmShelfTest, WhatIsThereIsTakenBeforeWhatIsBeingMadeAndTheOlderFirst) {
  WarmShelf shelf(2);
  shelf.NoteAsked(Bytes(4));
  EXPECT_FALSE(shelf.Find(Bytes(4)).has_value());
  shelf.Put(Bytes(4), 1, BlockId(11), /*made=*/false);
  shelf.Put(Bytes(4), 2, BlockId(12), /*made=*/true);
  shelf.Put(Bytes(4), 3, BlockId(13), /*made=*/true);
  EXPECT_EQ(shelf.Find(Bytes(4)), BlockId(12));
  EXPECT_EQ(shelf.Count(Bytes(4)), 3);
  shelf.Remove(Bytes(4), 2, BlockId(12));
  shelf.Remove(Bytes(4), 3, BlockId(13));
  EXPECT_EQ(shelf.Find(Bytes(4)), BlockId(11));
  shelf.MarkMade(Bytes(4), 1, BlockId(11));
  EXPECT_EQ(shelf.Find(Bytes(4)), BlockId(11));
  shelf.Remove(Bytes(4), 1, BlockId(11));
  shelf.Remove(Bytes(4), 1, BlockId(11));
  EXPECT_FALSE(shelf.Find(Bytes(4)).has_value());
}

TEST(WarmShelfTest, OnlyTheExactSizeServes) {
  WarmShelf shelf(2);
  shelf.NoteAsked(Bytes(8));
  shelf.Put(Bytes(8), 1, BlockId(11), true);
  EXPECT_FALSE(shelf.Find(Bytes(4)).has_value());
  EXPECT_FALSE(shelf.Find(Bytes(16)).has_value());
}

TEST(WarmShelfTest, TheSizeAskedForLeastRecentlyIsDroppedAndComesFirstWhenRoomIsNeeded) {
  WarmShelf shelf(2);
  EXPECT_TRUE(shelf.NoteAsked(Bytes(4)).empty());
  shelf.Put(Bytes(4), 1, BlockId(11), true);
  EXPECT_TRUE(shelf.NoteAsked(Bytes(8)).empty());
  shelf.Put(Bytes(8), 2, BlockId(12), true);
  EXPECT_EQ(shelf.All(), (std::vector<BlockId>{BlockId(11), BlockId(12)}));
  EXPECT_TRUE(shelf.NoteAsked(Bytes(4)).empty());
  EXPECT_EQ(shelf.All(), (std::vector<BlockId>{BlockId(12), BlockId(11)}));
  EXPECT_EQ(shelf.NoteAsked(Bytes(16)), std::vector<BlockId>{BlockId(12)});
}

TEST(WarmShelfTest, WhatIsOfASizeThatIsNotKeptIsThereAndComesFirst) {
  WarmShelf shelf(1);
  shelf.NoteAsked(Bytes(4));
  shelf.Put(Bytes(4), 1, BlockId(11), true);
  shelf.Put(Bytes(8), 2, BlockId(12), true);
  EXPECT_EQ(shelf.All(), (std::vector<BlockId>{BlockId(12), BlockId(11)}));
}

}  // namespace
}  // namespace berth::core
