#include "daemon/core/memory/block_table.h"

#include "gtest/gtest.h"

namespace berth::core {
namespace {

TEST(BlockTableTest, GenerationsRiseAndAreNotReused) {
  Journal journal;
  BlockTable table(&journal);
  Block& first = table.Add(BlockId(10), 0, Bytes(4), BlockPhase::kReserved);
  EXPECT_EQ(first.generation, 1);
  table.Erase(first);
  EXPECT_EQ(table.Add(BlockId(10), 0, Bytes(4), BlockPhase::kReserved).generation, 2);
  EXPECT_EQ(table.Find(BlockId(11)), nullptr);
}

TEST(BlockTableTest, BlocksAreFoundByOwnerUntilReleased) {
  Journal journal;
  BlockTable table(&journal);
  Block& a = table.Add(BlockId(1), 0, Bytes(4), BlockPhase::kLive);
  Block& b = table.Add(BlockId(2), 1, Bytes(8), BlockPhase::kReserved);
  table.Add(BlockId(3), 0, Bytes(16), BlockPhase::kWarm);
  EXPECT_EQ(table.places().of_users(), 0u);
  table.SetOwner(a, SessionId(5), {.uid = 1}, "x");
  table.SetOwner(b, SessionId(5), {.uid = 1}, "y");
  EXPECT_EQ(table.places().of_users(), 2u);
  EXPECT_EQ(table.OwnedBy(SessionId(5)), (std::vector<Block*>{&a, &b}));
  EXPECT_EQ(table.LiveBytesOf(SessionId(5)), Bytes(4));
  EXPECT_TRUE(table.OwnedBy(SessionId(6)).empty());
  EXPECT_EQ(table.OfDevice(0).size(), 2);
  a.phase = BlockPhase::kRetired;
  EXPECT_EQ(table.LiveBytesOf(SessionId(5)), Bytes(0));
  EXPECT_TRUE(table.CheckInvariants().ok());
  table.Erase(a);
  EXPECT_EQ(table.OwnedBy(SessionId(5)), std::vector<Block*>{&b});
  EXPECT_TRUE(table.CheckInvariants().ok());
}

TEST(BlockTableTest, ImportsAreFoundByIdAndByChannel) {
  Journal journal;
  BlockTable table(&journal);
  Block& block = table.Add(BlockId(1), 0, Bytes(4), BlockPhase::kLive);
  table.SetOwner(block, SessionId(5), {}, "");
  const ImportId a = table.AddImport(block, {.channel = ChannelId(7)}).id;
  const ImportId b = table.AddImport(block, {.channel = ChannelId(7)}).id;
  const ImportId c = table.AddImport(block, {.channel = ChannelId(8)}).id;
  EXPECT_EQ(table.ImportsOf(ChannelId(7)), (std::vector<ImportId>{a, b}));
  EXPECT_EQ(table.FindByImport(c), &block);
  table.EraseImport(block, a);
  EXPECT_EQ(table.FindByImport(a), nullptr);
  EXPECT_EQ(table.ImportsOf(ChannelId(7)), std::vector<ImportId>{b});
  EXPECT_EQ(block.imports.size(), 2);
  EXPECT_TRUE(table.CheckInvariants().ok());
}

TEST(BlockTableTest, InvariantsCatchImportsOfRetiredBlock) {
  Journal journal;
  BlockTable table(&journal);
  Block& block = table.Add(BlockId(1), 0, Bytes(4), BlockPhase::kLive);
  table.AddImport(block, {.channel = ChannelId(7)});
  block.phase = BlockPhase::kRetired;
  EXPECT_FALSE(table.CheckInvariants().ok());
}

}  // namespace
}  // namespace berth::core
