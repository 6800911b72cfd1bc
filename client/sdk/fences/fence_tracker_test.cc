#include "client/sdk/fences/fence_tracker.h"

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "gtest/gtest.h"

namespace berth::internal {
namespace {

// Records all calls; no work ends by itself.
class FakeStream final : public StreamBackend {
 public:
  FakeStream() : StreamBackend(StreamKind::kHost) {}
  absl::Status CheckSupport() override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<StreamEvent>> CreateEvent() override {
    ++created;
    return std::make_unique<Event>(this);
  }
  absl::Status Record(StreamEvent& event) override {
    static_cast<Event&>(event).place = ++recorded;
    return absl::OkStatus();
  }
  absl::Status WaitEvent(StreamEvent&) override { return absl::OkStatus(); }
  absl::Status Wait(MappedPage&, uint32_t, uint64_t) override { return absl::OkStatus(); }
  absl::Status Write(MappedPage&, uint32_t, uint64_t) override { return absl::OkStatus(); }
  absl::StatusOr<bool> Reached(StreamEvent& event) override {
    if (!driver.ok()) return driver;
    return static_cast<Event&>(event).place <= ended;
  }
  absl::Status Publish(StreamEvent& event, MappedPage&, uint32_t, uint64_t value) override {
    published.emplace_back(static_cast<Event&>(event).place, value);
    return driver;
  }
  absl::Status Enqueue(std::function<void()>) override { return absl::OkStatus(); }
  absl::Status Synchronize() override { return absl::OkStatus(); }

  struct Event final : StreamEvent {
    explicit Event(FakeStream* stream) : stream(*stream) {}
    ~Event() override { --stream.created; }
    FakeStream& stream;
    uint64_t place = 0;
  };
  // Number of events.
  int created = 0;
  uint64_t recorded = 0;
  // Number of recorded launches that have ended.
  uint64_t ended = 0;
  std::vector<std::pair<uint64_t, uint64_t>> published;
  absl::Status driver;
};

using Places = std::vector<std::pair<uint64_t, uint64_t>>;
using Waits = std::vector<std::pair<uint32_t, uint64_t>>;

class FenceTrackerTest : public testing::Test {
 protected:
  FenceTrackerTest() {
    tracker_.SetSender([this](const attach::HandedOver& handed) { sent_.push_back(handed); });
  }
  ~FenceTrackerTest() override {
    tracker_.Close(a_);
    tracker_.Close(b_);
    x_.reset();
    y_.reset();
    EXPECT_EQ(run_a_.created, 0);
    EXPECT_EQ(run_b_.created, 0);
  }

  static TrackedLaunch Launch(std::vector<TrackedUse> uses) {
    return {.uses = absl::InlinedVector<TrackedUse, 4>(uses.begin(), uses.end())};
  }
  // Begins uses that can begin at once.
  TrackedLaunch Begin(TrackedStream& stream, std::vector<TrackedUse> uses) {
    TrackedLaunch launch = Launch(std::move(uses));
    const absl::Status begun = tracker_.Begin(stream, &launch, absl::ZeroDuration());
    EXPECT_TRUE(begun.ok()) << begun;
    return launch;
  }
  void Finish(TrackedStream& stream, TrackedLaunch* launch) {
    EXPECT_TRUE(tracker_.Record(stream, launch).ok());
    tracker_.Finish(stream, launch);
  }
  // Returns the slots and places that a launch waits for.
  static Waits WaitsOf(const TrackedLaunch& launch) {
    Waits waits;
    for (const LaunchEnd* const wait : launch.waits) waits.emplace_back(wait->stream->slot(), wait->place);
    return waits;
  }
  // Performs a whole use. Returns its waits.
  Waits Use(TrackedStream& stream, std::vector<TrackedUse> uses) {
    TrackedLaunch launch = Begin(stream, std::move(uses));
    const Waits waits = WaitsOf(launch);
    Finish(stream, &launch);
    return waits;
  }
  const FenceSlot& Slot(uint32_t slot) { return page_.slot(slot); }

  FenceTracker tracker_;
  MappedPage page_{*FencePage::MapWritable(CreateFencePage(ChannelId(1))->get()), /*read_only=*/false};
  FakeStream run_a_;
  FakeStream run_b_;
  TrackedStream a_{&run_a_, &page_, 0, 0};
  TrackedStream b_{&run_b_, &page_, 1, 0};
  std::shared_ptr<TrackedBlock> x_ = tracker_.Track(BlockId(10), /*shared=*/false);
  std::shared_ptr<TrackedBlock> y_ = tracker_.Track(BlockId(20), /*shared=*/false);
  std::vector<attach::HandedOver> sent_;
};

TEST_F(FenceTrackerTest, ReadWaitsForLastWriteWriteForReadsToo) {
  EXPECT_EQ(Use(a_, {{x_.get(), UseAccess::kWrite}}), Waits());
  EXPECT_EQ(Use(a_, {{x_.get(), UseAccess::kReadWrite}}), Waits());
  EXPECT_EQ(Use(b_, {{x_.get(), UseAccess::kRead}}), Waits({{0, 2}}));
  EXPECT_EQ(Use(a_, {{x_.get(), UseAccess::kWrite}}), Waits({{1, 1}}));
}

TEST_F(FenceTrackerTest, LaunchWaitsOncePerStream) {
  Use(a_, {{y_.get(), UseAccess::kWrite}});
  Use(a_, {{x_.get(), UseAccess::kWrite}});
  EXPECT_EQ(Use(b_, {{y_.get(), UseAccess::kRead}, {x_.get(), UseAccess::kRead}}), Waits({{0, 2}}));
  EXPECT_EQ(Use(b_, {{x_.get(), UseAccess::kRead}, {y_.get(), UseAccess::kRead}}), Waits({{0, 2}}));
}

TEST_F(FenceTrackerTest, UnreferencedEventsAreReused) {
  for (int i = 0; i < 100; ++i) {
    Use(a_, {{x_.get(), UseAccess::kWrite}});
    Use(b_, {{x_.get(), UseAccess::kRead}});
    Use(b_, {{x_.get(), UseAccess::kRead}, {y_.get(), UseAccess::kWrite}});
  }
  EXPECT_LE(run_a_.created, 2);
  EXPECT_LE(run_b_.created, 3);
  // The ends that a launch waits for exist until the launch is over, whatever happens to the block meanwhile.
  Use(a_, {{x_.get(), UseAccess::kWrite}});
  TrackedLaunch launch = Begin(b_, {{x_.get(), UseAccess::kRead}});
  const uint64_t place = launch.waits.at(0)->place;
  x_.reset();
  for (int i = 0; i < 10; ++i) Use(a_, {{y_.get(), UseAccess::kWrite}});
  EXPECT_EQ(launch.waits.at(0)->place, place);
  x_ = tracker_.Track(BlockId(10), false);
  tracker_.Abandon(b_, &launch);
  EXPECT_EQ(Use(b_, {{x_.get(), UseAccess::kRead}}), Waits());
}

TEST_F(FenceTrackerTest, AbandonedUseHasNoEffect) {
  Use(a_, {{x_.get(), UseAccess::kWrite}});
  TrackedLaunch launch = Begin(b_, {{x_.get(), UseAccess::kWrite}});
  tracker_.Abandon(b_, &launch);
  EXPECT_EQ(Use(a_, {{x_.get(), UseAccess::kWrite}}), Waits());
  EXPECT_EQ(Use(b_, {{x_.get(), UseAccess::kRead}}), Waits({{0, 2}}));
}

TEST_F(FenceTrackerTest, ConflictingUseWaitsForOpenUse) {
  TrackedLaunch writing = Begin(a_, {{x_.get(), UseAccess::kWrite}});
  TrackedLaunch reading = Launch({{y_.get(), UseAccess::kRead}, {x_.get(), UseAccess::kRead}});
  absl::Status begun;
  std::thread reader([&] { begun = tracker_.Begin(b_, &reading, absl::Seconds(30)); });
  // Whether or not the reader already waits, only this lets it continue.
  Finish(a_, &writing);
  reader.join();
  ASSERT_TRUE(begun.ok()) << begun;
  EXPECT_EQ(WaitsOf(reading), Waits({{0, 1}}));
  tracker_.Abandon(b_, &reading);
}

TEST_F(FenceTrackerTest, ExpiredWaitIsRejectedAndBeginsNothing) {
  TrackedLaunch writing = Begin(a_, {{x_.get(), UseAccess::kWrite}});
  TrackedLaunch both = Launch({{y_.get(), UseAccess::kWrite}, {x_.get(), UseAccess::kRead}});
  const absl::Status refused = tracker_.Begin(b_, &both, absl::ZeroDuration());
  EXPECT_TRUE(IsRefusal(refused, Reason::kBlockInUse)) << refused;
  EXPECT_EQ(Slot(1).begun.load(), 0u);
  EXPECT_EQ(Use(b_, {{y_.get(), UseAccess::kWrite}}), Waits());
  tracker_.Abandon(a_, &writing);
}

TEST_F(FenceTrackerTest, FenceValuesShowUsesUnderWay) {
  TrackedLaunch first = Begin(a_, {{x_.get(), UseAccess::kWrite}});
  EXPECT_EQ(Slot(0).begun.load(), 1u);
  tracker_.Abandon(a_, &first);
  EXPECT_EQ(Slot(0).begun.load(), 0u);
  Use(a_, {{x_.get(), UseAccess::kReadWrite}});
  const uint64_t point = tracker_.Point(a_);
  TrackedLaunch open = Begin(a_, {{x_.get(), UseAccess::kWrite}});
  EXPECT_EQ(Slot(0).begun.load(), 2u);
  // Uses that are open, or were queued after the point, have not been seen to end.
  tracker_.SawEnd(a_, point);
  EXPECT_EQ(Slot(0).ended.load(), 1u);
  Finish(a_, &open);
  tracker_.SawEnd(a_, point);
  EXPECT_EQ(Slot(0).ended.load(), 1u);
  tracker_.SawEnd(a_, tracker_.Point(a_));
  EXPECT_EQ(Slot(0).ended.load(), 2u);
  EXPECT_EQ(Slot(0).done.load(), 0u);
}

TEST_F(FenceTrackerTest, LookDetectsWhetherAllUsesEnded) {
  tracker_.Look(a_);
  Use(a_, {{x_.get(), UseAccess::kWrite}});
  Use(a_, {{y_.get(), UseAccess::kWrite}});
  run_a_.ended = 1;
  tracker_.Look(a_);
  EXPECT_EQ(Slot(0).ended.load(), 0u);
  run_a_.ended = 2;
  tracker_.Look(a_);
  EXPECT_EQ(Slot(0).ended.load(), 2u);
}

TEST_F(FenceTrackerTest, ReadsAndSharedBlocksDoNotRaiseBegun) {
  const std::shared_ptr<TrackedBlock> shared = tracker_.Track(BlockId(30), /*shared=*/true);
  Use(a_, {{x_.get(), UseAccess::kRead}});
  TrackedLaunch launch = Begin(a_, {{shared.get(), UseAccess::kWrite}});
  EXPECT_EQ(Slot(0).begun.load(), 0u);
  tracker_.Abandon(a_, &launch);
}

TEST_F(FenceTrackerTest, ReusedSlotContinuesItsFenceValues) {
  Use(a_, {{x_.get(), UseAccess::kWrite}});
  tracker_.SawEnd(a_, tracker_.Point(a_));
  tracker_.Close(a_);
  TrackedStream next(&run_a_, &page_, 0, 0);
  // The closed stream's work requires no wait.
  EXPECT_EQ(Use(b_, {{x_.get(), UseAccess::kWrite}}), Waits());
  Use(next, {{y_.get(), UseAccess::kWrite}});
  EXPECT_EQ(Slot(0).begun.load(), 2u);
  EXPECT_EQ(Slot(0).ended.load(), 1u);
  tracker_.Close(next);
}

TEST_F(FenceTrackerTest, ClosedStreamKeepsEventsForOpenWaits) {
  Use(a_, {{x_.get(), UseAccess::kWrite}});
  TrackedLaunch reading = Begin(b_, {{x_.get(), UseAccess::kRead}});
  tracker_.Close(a_);
  EXPECT_EQ(run_a_.created, 1);
  EXPECT_EQ(tracker_.FenceValueOf(*reading.waits.at(0))->value, 0u);
  Finish(b_, &reading);
  EXPECT_EQ(run_a_.created, 0);
}

TEST_F(FenceTrackerTest, UnendedUsesAreHandedOverAsFenceValues) {
  Use(a_, {{x_.get(), UseAccess::kWrite}});
  Use(a_, {{y_.get(), UseAccess::kWrite}});
  Use(b_, {{x_.get(), UseAccess::kRead}});
  tracker_.AskHandOver(BlockId(10));
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_EQ(sent_[0].block, 10u);
  ASSERT_EQ(sent_[0].count, 2u);
  EXPECT_EQ(sent_[0].marks[0].slot, 0u);
  EXPECT_EQ(sent_[0].marks[0].access, 2u);
  EXPECT_EQ(sent_[0].marks[0].value, 1u);
  EXPECT_EQ(sent_[0].marks[1].slot, 1u);
  EXPECT_EQ(sent_[0].marks[1].access, 1u);
  EXPECT_EQ(sent_[0].marks[1].value, 1u);
  // Each value comes with the end of its own launch.
  EXPECT_EQ(run_a_.published, Places({{1, 1}}));
  EXPECT_EQ(run_b_.published, Places({{1, 1}}));
}

TEST_F(FenceTrackerTest, EndedUseIsNotHandedOver) {
  Use(a_, {{x_.get(), UseAccess::kWrite}});
  run_a_.ended = 1;
  tracker_.AskHandOver(BlockId(10));
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_EQ(sent_[0].count, 0u);
  EXPECT_TRUE(run_a_.published.empty());
  EXPECT_EQ(Slot(0).ended.load(), 1u);
}

TEST_F(FenceTrackerTest, HandOverFollowsLastOpenUse) {
  TrackedLaunch writing = Begin(a_, {{x_.get(), UseAccess::kWrite}});
  TrackedLaunch more = Begin(a_, {{x_.get(), UseAccess::kWrite}});
  tracker_.AskHandOver(BlockId(10));
  // The daemon already orders new uses.
  TrackedLaunch reading = Begin(b_, {{x_.get(), UseAccess::kRead}, {y_.get(), UseAccess::kRead}});
  EXPECT_TRUE(reading.uses[0].remote);
  EXPECT_FALSE(reading.uses[1].remote);
  tracker_.Abandon(a_, &more);
  EXPECT_TRUE(sent_.empty());
  Finish(a_, &writing);
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_EQ(sent_[0].block, 10u);
  EXPECT_EQ(sent_[0].marks[0].value, 1u);
  Finish(b_, &reading);
  EXPECT_EQ(sent_.size(), 1u);
}

TEST_F(FenceTrackerTest, FailingDriverPreventsHandOver) {
  Use(a_, {{x_.get(), UseAccess::kWrite}});
  run_a_.driver = absl::InternalError("poisoned");
  tracker_.AskHandOver(BlockId(10));
  EXPECT_TRUE(sent_.empty());
  EXPECT_LT(Slot(0).ended.load(), Slot(0).begun.load());
}

TEST_F(FenceTrackerTest, UnknownBlockIsHandedOverEmpty) {
  x_.reset();
  tracker_.AskHandOver(BlockId(10));
  tracker_.AskHandOver(BlockId(99));
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_EQ(sent_[0].count, 0u);
  EXPECT_EQ(sent_[1].block, 99u);
}

TEST_F(FenceTrackerTest, SharedBlocksAreOrderedByDaemon) {
  const std::shared_ptr<TrackedBlock> shared = tracker_.Track(BlockId(30), /*shared=*/true);
  EXPECT_EQ(tracker_.Track(BlockId(30), false), shared);
  tracker_.MarkShared(BlockId(20));
  tracker_.MarkShared(BlockId(99));
  TrackedLaunch launch = Begin(
      a_, {{shared.get(), UseAccess::kWrite}, {y_.get(), UseAccess::kWrite}, {x_.get(), UseAccess::kWrite}});
  EXPECT_TRUE(launch.uses[0].remote);
  EXPECT_TRUE(launch.uses[1].remote);
  EXPECT_FALSE(launch.uses[2].remote);
  tracker_.Abandon(a_, &launch);
}

TEST_F(FenceTrackerTest, ReimportedBlockHasNoEarlierUses) {
  Use(a_, {{x_.get(), UseAccess::kWrite}});
  x_ = tracker_.Track(BlockId(11), false);
  x_ = tracker_.Track(BlockId(10), false);
  EXPECT_EQ(Use(b_, {{x_.get(), UseAccess::kRead}}), Waits());
}

// A thread uses a block while the block is handed over: no use is lost in between.
TEST_F(FenceTrackerTest, ConcurrentUseIsHandedOverOrRemote) {
  for (uint64_t round = 0; round < 2000; ++round) {
    const BlockId id(100 + round);
    const std::shared_ptr<TrackedBlock> block = tracker_.Track(id, false);
    sent_.clear();
    const uint64_t before = run_a_.recorded;
    uint64_t local = 0;
    std::thread user([&] {
      while (true) {
        TrackedLaunch launch = Begin(a_, {{block.get(), UseAccess::kWrite}});
        if (launch.remote) return tracker_.Abandon(a_, &launch);
        ++local;
        Finish(a_, &launch);
      }
    });
    tracker_.AskHandOver(id);
    user.join();
    // The last finish and the daemon's request may have crossed.
    ASSERT_FALSE(tracker_.FinishHandOvers());
    ASSERT_EQ(sent_.size(), 1u);
    ASSERT_EQ(run_a_.recorded - before, local);
    ASSERT_EQ(sent_[0].count, local > 0 ? 1u : 0u);
    // The hand-over contains the last launch.
    if (local > 0) {
      ASSERT_EQ(run_a_.published.back(), std::pair(run_a_.recorded, sent_[0].marks[0].value));
    }
  }
}

}  // namespace
}  // namespace berth::internal
