#include "client/sdk/arena/arena_heap.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <vector>

#include "client/sdk/arena/testing/arena_fakes.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

constexpr auto kOne = static_cast<ArenaStream>(1);
constexpr auto kTwo = static_cast<ArenaStream>(2);
constexpr uint32_t kShift = 8;
constexpr ArenaSizeClasses kClasses(ArenaPolicy::kSizeClasses);

uint32_t ClassOf(Bytes bytes) { return kClasses.Ceil(bytes.count() >> kShift); }

class ArenaHeapTest : public ::testing::Test {
 protected:
  void AddChunk(Bytes bytes, bool whole = false) {
    auto lease = source_.Lease(bytes);
    ASSERT_TRUE(lease.ok());
    heap_.AddChunk(*std::move(lease), whole, ClassOf(bytes));
  }
  ArenaExtent* Take(Bytes bytes, ArenaStream stream = kOne) { return heap_.Take(ClassOf(bytes), stream); }
  ArenaStats Stats() const {
    ArenaStats stats;
    heap_.AddTo(&stats);
    return stats;
  }

  FakeArenaSource source_;
  FakeProgress progress_;
  ArenaHeap heap_{kClasses, kShift, ClassOf(MiB(16))};
};

TEST_F(ArenaHeapTest, TakenPieceLeavesRestFree) {
  AddChunk(MiB(16));
  const ArenaExtent* const first = Take(MiB(1));
  const ArenaExtent* const second = Take(MiB(2));
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(second->address(), first->address() + MiB(1).count());
  EXPECT_EQ(second->address_and_state.load(), second->address() | ArenaExtent::kCached);
  EXPECT_EQ(second->chunk->StartingAt(second->address()), second);
  EXPECT_EQ(Stats().free, MiB(13));
  EXPECT_EQ(Stats().largest_free, MiB(13));
  EXPECT_EQ(Take(MiB(14)), nullptr);
}

TEST_F(ArenaHeapTest, NeighboursOfSameStreamMergeInAnyOrder) {
  AddChunk(MiB(16));
  int order[] = {0, 1, 2, 3};
  do {
    ArenaExtent* extents[4];
    for (ArenaExtent*& extent : extents) ASSERT_NE(extent = Take(MiB(4)), nullptr);
    for (const int index : order) heap_.Put(extents[index], kOne);
    ArenaExtent* const whole = Take(MiB(16));
    ASSERT_NE(whole, nullptr);
    EXPECT_EQ(whole->before, nullptr);
    EXPECT_EQ(whole->after, nullptr);
    heap_.Put(whole, kOne);
  } while (std::next_permutation(std::begin(order), std::end(order)));
}

TEST_F(ArenaHeapTest, NeighboursOfTwoStreamsMergeAfterBothFinish) {
  AddChunk(MiB(16));
  ArenaExtent* const one = Take(MiB(8), kOne);
  ArenaExtent* const two = Take(MiB(8), kTwo);
  heap_.Put(one, kOne);
  heap_.Put(two, kTwo);
  EXPECT_EQ(Take(MiB(16), kOne), nullptr);
  const std::vector<ArenaHeap::OpenMark> marks = heap_.BeginMarks();
  ASSERT_EQ(marks.size(), 2u);
  for (const ArenaHeap::OpenMark& mark : marks) heap_.EndMark(mark, progress_.Mark(mark.stream));
  progress_.Finish(kOne);
  EXPECT_TRUE(heap_.Settle(progress_).ok());
  EXPECT_EQ(Stats().free, MiB(8));
  EXPECT_EQ(Stats().held, MiB(8));
  EXPECT_TRUE(heap_.RemoveFreeChunks().empty());
  progress_.Finish(kTwo);
  EXPECT_TRUE(heap_.Settle(progress_).ok());
  EXPECT_FALSE(heap_.waiting());
  EXPECT_EQ(heap_.RemoveFreeChunks().size(), 1u);
  EXPECT_EQ(source_.leased(), Bytes());
}

TEST_F(ArenaHeapTest, MarkCoversNoConcurrentFrees) {
  AddChunk(MiB(16));
  ArenaExtent* const early = Take(MiB(4));
  Take(MiB(4));
  ArenaExtent* const late = Take(MiB(4));
  heap_.Put(early, kOne);
  const std::vector<ArenaHeap::OpenMark> marks = heap_.BeginMarks();
  ASSERT_EQ(marks.size(), 1u);
  heap_.Put(late, kOne);
  heap_.EndMark(marks[0], progress_.Mark(kOne));
  progress_.Finish(kOne);
  EXPECT_TRUE(heap_.Settle(progress_).ok());
  EXPECT_EQ(Stats().held, MiB(4));
  EXPECT_EQ(heap_.BeginMarks().size(), 1u);
}

TEST_F(ArenaHeapTest, EarlierMarkDoesNotCoverReusedStream) {
  AddChunk(MiB(16));
  ArenaExtent* const extent = Take(MiB(4));
  heap_.Put(extent, kOne);
  const std::vector<ArenaHeap::OpenMark> marks = heap_.BeginMarks();
  heap_.Forget(kOne);
  heap_.Put(Take(MiB(4)), kOne);
  heap_.EndMark(marks[0], progress_.Mark(kOne));
  progress_.Finish(kOne);
  EXPECT_TRUE(heap_.Settle(progress_).ok());
  EXPECT_EQ(Stats().held, MiB(4));
}

TEST_F(ArenaHeapTest, SharedExtentWaitsForEveryStream) {
  AddChunk(MiB(16));
  ArenaExtent* const extent = Take(MiB(16));
  const StreamProgress::Point one = *progress_.Mark(kOne);
  const StreamProgress::Point two = *progress_.Mark(kTwo);
  heap_.PutAfter(extent, kOne, {{kOne, one}, {kTwo, two}});
  progress_.Finish(kOne);
  EXPECT_TRUE(heap_.Settle(progress_).ok());
  EXPECT_EQ(Stats().in_use, MiB(16));
  progress_.Finish(kTwo);
  EXPECT_TRUE(heap_.Settle(progress_).ok());
  EXPECT_EQ(Stats().held, MiB(16));
}

TEST_F(ArenaHeapTest, WholeChunkServesOnlyItsSizeClass) {
  AddChunk(MiB(40), /*whole=*/true);
  EXPECT_EQ(Take(MiB(1)), nullptr);
  EXPECT_EQ(Take(MiB(16)), nullptr);
  EXPECT_EQ(Take(MiB(36)), nullptr);
  ArenaExtent* const extent = Take(MiB(40));
  ASSERT_NE(extent, nullptr);
  EXPECT_EQ(Take(MiB(40)), nullptr);
  EXPECT_EQ(extent->chunk->StartingAt(extent->address() + MiB(1).count()), nullptr);
  heap_.Put(extent, kOne);
  EXPECT_EQ(Take(MiB(40), kTwo), nullptr);
  EXPECT_EQ(Take(MiB(40), kOne), extent);
}

TEST(ArenaChunkTableTest, ChunkOfAddressIsFound) {
  FakeArenaSource source;
  std::vector<std::unique_ptr<ArenaChunk>> chunks;
  std::vector<const ArenaChunk*> pointers;
  for (int i = 0; i < 5; ++i) {
    chunks.push_back(std::make_unique<ArenaChunk>(*source.Lease(MiB(2)), kShift, /*whole=*/false));
  }
  // One chunk is missing, and the order differs.
  for (const int index : {3, 0, 4, 1}) pointers.push_back(chunks[index].get());
  const ArenaChunkTable table(pointers);
  for (int index = 0; index < 5; ++index) {
    const ArenaChunk* const expected = index == 2 ? nullptr : chunks[index].get();
    EXPECT_EQ(table.Find(chunks[index]->address()), expected);
    EXPECT_EQ(table.Find(chunks[index]->address() + chunks[index]->bytes() - 1), expected);
  }
  EXPECT_EQ(table.Find(0), nullptr);
  EXPECT_EQ(table.Find(chunks[0]->address() - 1), nullptr);
  EXPECT_EQ(table.Find(chunks[4]->address() + chunks[4]->bytes()), nullptr);
  EXPECT_EQ(ArenaChunkTable().Find(chunks[0]->address()), nullptr);
}

}  // namespace
}  // namespace berth::internal
