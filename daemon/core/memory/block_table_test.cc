#include "daemon/core/memory/block_table.h"

#include <cstdint>
#include <utility>

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

TEST(BlockTableTest, CreatesCountToTheirUserUntilTheyEnd) {
  Journal journal;
  BlockTable table(&journal);
  const auto creates = [&](uint32_t device) { return table.CreatesOf(device, WorkerKind::kMain).CountOf(1); };
  Block& made = table.Add(BlockId(1), 0, Bytes(4), BlockPhase::kReserved);
  Block& left = table.Add(BlockId(2), 0, Bytes(4), BlockPhase::kReserved);
  Block& warming = table.Add(BlockId(3), 0, Bytes(4), BlockPhase::kWarming);
  Block& elsewhere = table.Add(BlockId(4), 1, Bytes(4), BlockPhase::kReserved);
  Block& of_context = table.Add(BlockId(5), 0, Bytes(4), BlockPhase::kReserved);
  of_context.export_kind = ExportKind::kCudaIpc;
  EXPECT_EQ(creates(0), 0u) << "the daemon's own";
  for (Block* const block : {&made, &left, &elsewhere, &of_context}) {
    table.SetOwner(*block, SessionId(5), {.uid = 1}, "");
  }
  EXPECT_EQ(creates(0), 2u);
  EXPECT_EQ(creates(1), 1u);
  EXPECT_EQ(table.CreatesOf(0, WorkerKind::kContext).CountOf(1), 1u);
  table.SetPhase(warming, BlockPhase::kReserved);
  table.SetOwner(warming, SessionId(5), {.uid = 1}, "");
  EXPECT_EQ(creates(0), 3u);
  table.SetPhase(made, BlockPhase::kLive);
  table.SetPhase(left, BlockPhase::kAbandoned);
  EXPECT_EQ(creates(0), 2u) << "the worker still makes the abandoned block";
  EXPECT_TRUE(table.CheckInvariants().ok());
  table.SetPhase(left, BlockPhase::kRetired);
  table.Erase(warming);
  EXPECT_EQ(creates(0), 0u);
  EXPECT_TRUE(table.CheckInvariants().ok());
  left.phase = BlockPhase::kAbandoned;
  EXPECT_FALSE(table.CheckInvariants().ok());
}

TEST(BlockTableTest, RestoredCreatesAreCounted) {
  Journal journal;
  BlockTable table(&journal);
  table.Restore(BlockTable::Counters{.generation = 3});
  uint64_t generation = 0;
  for (const BlockPhase phase : {BlockPhase::kReserved, BlockPhase::kAbandoned, BlockPhase::kLive}) {
    Block block;
    block.id = BlockId(++generation);
    block.generation = generation;
    block.phase = phase;
    block.owner = SessionId(5);
    block.tenant = {.uid = 1};
    ASSERT_NE(table.Restore(std::move(block)), nullptr);
  }
  EXPECT_EQ(table.CreatesOf(0, WorkerKind::kMain).CountOf(1), 2u);
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
