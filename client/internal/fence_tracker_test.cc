#include "client/internal/fence_tracker.h"

#include <thread>
#include <utility>
#include <vector>

#include "common/error.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

class FenceTrackerTest : public testing::Test {
 protected:
  FenceTrackerTest()
      : page_(*FencePage::MapWritable(CreateFencePage(ChannelId(1))->get())),
        a_(0, &page_.writable_slot(0), 0),
        b_(1, &page_.writable_slot(1), 0),
        x_(tracker_.Track(BlockId(10), /*shared=*/false)),
        y_(tracker_.Track(BlockId(20), /*shared=*/false)) {
    tracker_.SetPage(&page_);
    tracker_.SetSender([this](const attach::HandedOver& handed) { sent_.push_back(handed); });
  }

  using Uses = std::vector<TrackedUse>;
  absl::StatusOr<OwnWaits> Begin(TrackedStream& stream, Uses& uses,
                                 absl::Duration patience = absl::Seconds(30)) {
    OwnWaits waits;
    const absl::Status status = tracker_.Begin(stream, absl::MakeSpan(uses), patience, &waits);
    if (!status.ok()) return status;
    return waits;
  }
  // A whole use. Returns what it waited for, as pairs.
  std::vector<std::pair<uint32_t, uint64_t>> Use(TrackedStream& stream, Uses uses) {
    const absl::StatusOr<OwnWaits> waits = Begin(stream, uses);
    EXPECT_TRUE(waits.ok()) << waits.status();
    tracker_.Finish(stream, uses, tracker_.NextValue(stream));
    std::vector<std::pair<uint32_t, uint64_t>> pairs;
    for (const OwnWait& wait : *waits) pairs.emplace_back(wait.slot, wait.value);
    return pairs;
  }

  FenceTracker tracker_;
  FencePage page_;
  TrackedStream a_;
  TrackedStream b_;
  std::shared_ptr<TrackedBlock> x_;
  std::shared_ptr<TrackedBlock> y_;
  std::vector<attach::HandedOver> sent_;
};

using Waits = std::vector<std::pair<uint32_t, uint64_t>>;

TEST_F(FenceTrackerTest, AReadWaitsForTheLastWriteAndAWriteForReadsToo) {
  EXPECT_EQ(Use(a_, {{x_.get(), UseAccess::kWrite}}), Waits());
  EXPECT_EQ(Use(a_, {{x_.get(), UseAccess::kReadWrite}}), Waits());
  EXPECT_EQ(Use(b_, {{x_.get(), UseAccess::kRead}}), Waits({{0, 2}}));
  EXPECT_EQ(Use(a_, {{x_.get(), UseAccess::kWrite}}), Waits({{1, 1}}));
}

TEST_F(FenceTrackerTest, OneWaitPerStreamForTheWholeLaunch) {
  Use(a_, {{x_.get(), UseAccess::kWrite}});
  Use(a_, {{y_.get(), UseAccess::kWrite}});
  EXPECT_EQ(Use(b_, {{x_.get(), UseAccess::kRead}, {y_.get(), UseAccess::kRead}}), Waits({{0, 2}}));
}

TEST_F(FenceTrackerTest, WhatHasEndedIsNotWaitedFor) {
  Use(a_, {{x_.get(), UseAccess::kWrite}});
  page_.writable_slot(0).done.store(1);
  EXPECT_EQ(Use(b_, {{x_.get(), UseAccess::kWrite}}), Waits());
  page_.writable_slot(1).done.store(1);
  EXPECT_EQ(Use(a_, {{x_.get(), UseAccess::kWrite}}), Waits());
}

TEST_F(FenceTrackerTest, TheWordsSayWhatIsUnderWay) {
  Uses uses = {{x_.get(), UseAccess::kWrite}};
  ASSERT_TRUE(Begin(a_, uses).ok());
  EXPECT_EQ(page_.slot(0).begun.load(), 1u);
  tracker_.Abandon(a_, uses);
  EXPECT_EQ(page_.slot(0).begun.load(), 0u);
  Uses more = {{x_.get(), UseAccess::kWrite}};
  ASSERT_TRUE(Begin(a_, uses).ok());
  ASSERT_TRUE(Begin(a_, more).ok());
  tracker_.Finish(a_, uses, tracker_.NextValue(a_));
  EXPECT_EQ(page_.slot(0).begun.load(), 2u);
  tracker_.Finish(a_, more, tracker_.NextValue(a_));
  EXPECT_EQ(page_.slot(0).begun.load(), 2u);
}

TEST_F(FenceTrackerTest, AnAbandonedUseIsAsIfItNeverWas) {
  Use(a_, {{x_.get(), UseAccess::kWrite}});
  Uses uses = {{x_.get(), UseAccess::kWrite}};
  ASSERT_TRUE(Begin(b_, uses).ok());
  tracker_.Abandon(b_, uses);
  EXPECT_EQ(Use(a_, {{x_.get(), UseAccess::kWrite}}), Waits());
  EXPECT_EQ(Use(b_, {{x_.get(), UseAccess::kRead}}), Waits({{0, 2}}));
}

TEST_F(FenceTrackerTest, AConflictingUseWaitsForTheOpenOne) {
  Uses writing = {{x_.get(), UseAccess::kWrite}};
  ASSERT_TRUE(Begin(a_, writing).ok());
  Uses reading = {{y_.get(), UseAccess::kRead}, {x_.get(), UseAccess::kRead}};
  absl::StatusOr<OwnWaits> waits;
  std::thread reader([&] { waits = Begin(b_, reading); });
  // Whether the reader has come to wait by now or not, it goes on after this alone.
  tracker_.Finish(a_, writing, tracker_.NextValue(a_));
  reader.join();
  ASSERT_TRUE(waits.ok()) << waits.status();
  ASSERT_EQ(waits->size(), 1u);
  EXPECT_EQ(waits->front().value, 1u);
  tracker_.Abandon(b_, reading);
}

TEST_F(FenceTrackerTest, WhoWaitsTooLongIsRefusedAndHasBegunNothing) {
  Uses writing = {{x_.get(), UseAccess::kWrite}};
  ASSERT_TRUE(Begin(a_, writing).ok());
  Uses both = {{y_.get(), UseAccess::kWrite}, {x_.get(), UseAccess::kRead}};
  const absl::Status refused = Begin(b_, both, absl::ZeroDuration()).status();
  EXPECT_TRUE(IsRefusal(refused, Reason::kBlockInUse)) << refused;
  EXPECT_EQ(page_.slot(1).begun.load(), 0u);
  Uses other = {{y_.get(), UseAccess::kWrite}};
  EXPECT_TRUE(Begin(a_, other).ok());
}

TEST_F(FenceTrackerTest, HandsOverWhatHasNotEnded) {
  Use(a_, {{x_.get(), UseAccess::kWrite}});
  Use(b_, {{x_.get(), UseAccess::kRead}});
  attach::HandedOver handed;
  ASSERT_TRUE(tracker_.AskHandOver(BlockId(10), &handed));
  EXPECT_EQ(handed.block, 10u);
  ASSERT_EQ(handed.count, 2u);
  EXPECT_EQ(handed.marks[0].slot, 0u);
  EXPECT_EQ(handed.marks[0].access, 2u);
  EXPECT_EQ(handed.marks[0].value, 1u);
  EXPECT_EQ(handed.marks[1].slot, 1u);
  EXPECT_EQ(handed.marks[1].access, 1u);
  page_.writable_slot(0).done.store(1);
  Use(a_, {{y_.get(), UseAccess::kWrite}});
  page_.writable_slot(0).done.store(2);
  ASSERT_TRUE(tracker_.AskHandOver(BlockId(20), &handed));
  EXPECT_EQ(handed.count, 0u);
}

TEST_F(FenceTrackerTest, AHandOverComesWithTheEndOfTheOpenUse) {
  Uses writing = {{x_.get(), UseAccess::kWrite}};
  ASSERT_TRUE(Begin(a_, writing).ok());
  attach::HandedOver handed;
  EXPECT_FALSE(tracker_.AskHandOver(BlockId(10), &handed));
  // New uses are the daemon's to order already.
  Uses reading = {{x_.get(), UseAccess::kRead}, {y_.get(), UseAccess::kRead}};
  ASSERT_TRUE(Begin(b_, reading).ok());
  EXPECT_TRUE(reading[0].remote);
  EXPECT_FALSE(reading[1].remote);
  EXPECT_TRUE(sent_.empty());
  tracker_.Finish(a_, writing, tracker_.NextValue(a_));
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_EQ(sent_[0].block, 10u);
  EXPECT_EQ(sent_[0].marks[0].value, 1u);
  tracker_.Finish(b_, reading, tracker_.NextValue(b_));
  EXPECT_EQ(sent_.size(), 1u);
}

TEST_F(FenceTrackerTest, AnUnknownBlockIsHandedOverEmpty) {
  x_.reset();
  attach::HandedOver handed;
  EXPECT_TRUE(tracker_.AskHandOver(BlockId(10), &handed));
  EXPECT_EQ(handed.count, 0u);
  EXPECT_TRUE(tracker_.AskHandOver(BlockId(99), &handed));
  EXPECT_EQ(handed.block, 99u);
}

TEST_F(FenceTrackerTest, SharedBlocksAreTheDaemonsToOrder) {
  const std::shared_ptr<TrackedBlock> shared = tracker_.Track(BlockId(30), /*shared=*/true);
  EXPECT_EQ(tracker_.Track(BlockId(30), false), shared);
  tracker_.MarkShared(BlockId(20));
  tracker_.MarkShared(BlockId(99));
  Uses uses = {
      {shared.get(), UseAccess::kWrite}, {y_.get(), UseAccess::kWrite}, {x_.get(), UseAccess::kWrite}};
  ASSERT_TRUE(Begin(a_, uses).ok());
  EXPECT_TRUE(uses[0].remote);
  EXPECT_TRUE(uses[1].remote);
  EXPECT_FALSE(uses[2].remote);
}

TEST_F(FenceTrackerTest, BlocksThatAreGoneLeaveNoTrace) {
  for (uint64_t i = 1000; i < 3000; ++i) tracker_.Track(BlockId(i), false);
  const std::shared_ptr<TrackedBlock> again = tracker_.Track(BlockId(1000), false);
  Use(a_, {{again.get(), UseAccess::kWrite}});
  EXPECT_EQ(Use(b_, {{again.get(), UseAccess::kRead}}), Waits({{0, 1}}));
}

}  // namespace
}  // namespace berth::internal
