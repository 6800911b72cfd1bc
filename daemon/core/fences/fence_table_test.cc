#include "daemon/core/fences/fence_table.h"

#include <map>
#include <optional>
#include <vector>

#include <berth/error.h>

#include "common/wire/fence_page.h"
#include "gtest/gtest.h"

namespace berth::core {
namespace {

constexpr BlockId kX{100};
constexpr BlockId kY{200};

class FenceTableTest : public testing::Test {
 protected:
  // Opens a stream of that process.
  StreamKey Stream(uint64_t channel) {
    return *table_.streams().Open(now_, ChannelId(channel),
                                  ProcessInfo{.pid = static_cast<int32_t>(channel), .name = "p"}, 0, false,
                                  read_);
  }
  FenceStep Step() { return FenceStep{.now = now_, .read = read_, .outcomes = &outcomes_}; }
  absl::StatusOr<std::optional<Prepared>> Prepare(StreamKey stream, std::vector<BlockUse> uses) {
    last_ = RequestId{stream.channel, ++sequence_};
    return table_.Prepare(Step(), last_, stream.slot, std::move(uses), now_ + absl::Seconds(1));
  }
  // Prepares a use that must begin at once.
  Prepared Begin(StreamKey stream, std::vector<BlockUse> uses) {
    absl::StatusOr<std::optional<Prepared>> prepared = Prepare(stream, std::move(uses));
    EXPECT_TRUE(prepared.ok()) << prepared.status();
    EXPECT_TRUE(prepared->has_value());
    return **prepared;
  }
  bool Queues(StreamKey stream, std::vector<BlockUse> uses) {
    const absl::StatusOr<std::optional<Prepared>> prepared = Prepare(stream, std::move(uses));
    return prepared.ok() && !prepared->has_value();
  }
  absl::StatusOr<std::vector<BlockId>> Finish(StreamKey stream, const Prepared& prepared, uint64_t value) {
    return table_.Finish(Step(), stream.channel, prepared.use, value);
  }
  // Performs a whole use and returns what it waited for.
  std::vector<FenceWait> Use(StreamKey stream, std::vector<BlockUse> uses) {
    const Prepared prepared = Begin(stream, std::move(uses));
    EXPECT_TRUE(Finish(stream, prepared, ++values_[stream]).ok());
    return prepared.waits;
  }
  FenceWait Last(StreamKey stream) { return {stream, values_[stream]}; }
  void Done(StreamKey stream) { fence_values_[stream].done = values_[stream]; }
  void Dies(uint64_t channel, std::vector<BlockId> local = {}) {
    table_.ProcessGone(Step(), ChannelId(channel), local);
    EXPECT_TRUE(table_.CheckInvariants().ok()) << table_.CheckInvariants();
  }
  // Removes and returns the only outcome.
  PrepareOutcome Outcome() {
    EXPECT_EQ(outcomes_.size(), 1u);
    PrepareOutcome outcome = std::move(outcomes_.at(0));
    outcomes_.clear();
    return outcome;
  }
  void TearDown() override { EXPECT_TRUE(table_.CheckInvariants().ok()) << table_.CheckInvariants(); }

  Journal journal_;
  FenceTable table_{
      &journal_,
      FenceLimits{.blocks_per_use = 4, .open_uses_per_channel = 3, .queued_prepares_per_channel = 2}};
  absl::Time now_ = absl::UnixEpoch();
  std::map<StreamKey, FenceValues> fence_values_;
  std::map<StreamKey, uint64_t> values_;
  ReadFenceValues read_ = [this](StreamKey stream) { return fence_values_[stream]; };
  std::vector<PrepareOutcome> outcomes_;
  uint64_t sequence_ = 0;
  RequestId last_;
};

using Waits = std::vector<FenceWait>;

TEST_F(FenceTableTest, ReadWaitsForLastWriteWriteForAll) {
  const StreamKey a = Stream(1), b = Stream(2), c = Stream(3), d = Stream(4);
  EXPECT_EQ(Use(a, {{kX, Access::kWrite}}), Waits());
  EXPECT_EQ(Use(b, {{kX, Access::kRead}}), Waits({Last(a)}));
  EXPECT_EQ(Use(c, {{kX, Access::kRead}}), Waits({Last(a)}));
  EXPECT_EQ(Use(d, {{kX, Access::kWrite}}), Waits({Last(a), Last(b), Last(c)}));
  for (const StreamKey stream : {a, b, c}) Done(stream);
  EXPECT_EQ(Use(b, {{kX, Access::kRead}}), Waits({Last(d)}));
  EXPECT_EQ(Use(c, {{kX, Access::kReadWrite}}), Waits({Last(b), Last(d)}));
}

TEST_F(FenceTableTest, ReaderWaitsForWriterAndItsPredecessors) {
  const StreamKey a = Stream(1), b = Stream(2), same = Stream(2), c = Stream(3);
  Use(a, {{kX, Access::kRead}});
  Use(same, {{kX, Access::kRead}});
  Use(b, {{kX, Access::kWrite}});
  EXPECT_EQ(Use(c, {{kX, Access::kRead}}), Waits({Last(a), Last(b)}));
}

TEST_F(FenceTableTest, ReadsOfSameStreamNeedSingleWait) {
  const StreamKey a = Stream(1), b = Stream(2);
  for (int i = 0; i < 100; ++i) Use(a, {{kX, Access::kRead}});
  EXPECT_EQ(Use(b, {{kX, Access::kWrite}}), Waits({{a, 100}}));
}

TEST_F(FenceTableTest, OwnStreamAndEndedUsesNeedNoWait) {
  const StreamKey a = Stream(1), same = Stream(1), b = Stream(2);
  Use(a, {{kX, Access::kWrite}});
  EXPECT_EQ(Use(a, {{kX, Access::kReadWrite}}), Waits());
  EXPECT_EQ(Use(same, {{kX, Access::kRead}}), Waits({Last(a)}));
  Done(a);
  EXPECT_EQ(Use(b, {{kX, Access::kRead}}), Waits());
}

TEST_F(FenceTableTest, LaunchWaitsForAllBlocksOncePerStream) {
  const StreamKey a = Stream(1), b = Stream(2);
  Use(a, {{kX, Access::kWrite}});
  Use(a, {{kY, Access::kWrite}});
  EXPECT_EQ(Use(b, {{kX, Access::kRead}, {kY, Access::kRead}}), Waits({{a, 2}}));
}

TEST_F(FenceTableTest, BlockNamedTwiceIsUsedOnceWithBothAccesses) {
  const StreamKey a = Stream(1), b = Stream(2), c = Stream(3);
  const Prepared prepared = Begin(a, {{kX, Access::kRead}, {kX, Access::kWrite}, {kX, Access::kRead}});
  EXPECT_TRUE(Queues(b, {{kX, Access::kRead}}));
  ASSERT_TRUE(Finish(a, prepared, 1).ok());
  EXPECT_EQ(Outcome().result->waits, Waits({{a, 1}}));
  EXPECT_EQ(Begin(c, {{kX, Access::kRead}}).waits, Waits({{a, 1}}));
}

TEST_F(FenceTableTest, ConflictingUseWaitsUntilOpenUseFinishes) {
  const StreamKey a = Stream(1), b = Stream(2);
  const Prepared writing = Begin(a, {{kX, Access::kWrite}});
  EXPECT_TRUE(Queues(b, {{kX, Access::kRead}}));
  const RequestId request = last_;
  EXPECT_TRUE(table_.Waits(request));
  ASSERT_TRUE(Finish(a, writing, 7).ok());
  const PrepareOutcome outcome = Outcome();
  EXPECT_EQ(outcome.request, request);
  EXPECT_EQ(outcome.result->waits, Waits({{a, 7}}));
  EXPECT_FALSE(table_.Waits(request));
}

TEST_F(FenceTableTest, ReadersRunTogetherBehindWaitingWriter) {
  const StreamKey a = Stream(1), b = Stream(2), c = Stream(3), d = Stream(4);
  const Prepared first = Begin(a, {{kX, Access::kRead}});
  const Prepared second = Begin(b, {{kX, Access::kRead}});
  EXPECT_TRUE(Queues(c, {{kX, Access::kWrite}}));
  EXPECT_TRUE(Queues(d, {{kX, Access::kRead}}));
  ASSERT_TRUE(Finish(a, first, 1).ok());
  EXPECT_TRUE(outcomes_.empty());
  ASSERT_TRUE(Finish(b, second, 1).ok());
  const PrepareOutcome writer = Outcome();
  EXPECT_EQ(writer.request.channel, c.channel);
  ASSERT_TRUE(Finish(c, *writer.result, 1).ok());
  EXPECT_EQ(Outcome().request.channel, d.channel);
}

TEST_F(FenceTableTest, OppositeBlockOrdersDoNotDeadlock) {
  const StreamKey a = Stream(1), b = Stream(2);
  const Prepared first = Begin(a, {{kX, Access::kWrite}, {kY, Access::kWrite}});
  EXPECT_TRUE(Queues(b, {{kY, Access::kWrite}, {kX, Access::kWrite}}));
  ASSERT_TRUE(Finish(a, first, 1).ok());
  EXPECT_EQ(Outcome().result->waits, Waits({{a, 1}}));
}

TEST_F(FenceTableTest, QueuedPrepareHoldsNoOtherBlock) {
  const StreamKey a = Stream(1), b = Stream(2), c = Stream(3);
  const Prepared writing = Begin(a, {{kX, Access::kWrite}});
  EXPECT_TRUE(Queues(b, {{kX, Access::kWrite}, {kY, Access::kRead}}));
  // A read of Y does not conflict with the queued prepare, and no process uses Y.
  EXPECT_TRUE(Finish(c, Begin(c, {{kY, Access::kRead}}), 1).ok());
  // A write of Y would pass the earlier prepare.
  EXPECT_TRUE(Queues(c, {{kY, Access::kWrite}}));
  ASSERT_TRUE(table_.Abandon(Step(), a.channel, writing.use).ok());
  EXPECT_EQ(Outcome().request.channel, b.channel);
}

TEST_F(FenceTableTest, StreamMayHaveSeveralOpenUsesOfBlock) {
  const StreamKey a = Stream(1);
  const Prepared first = Begin(a, {{kX, Access::kWrite}});
  const Prepared second = Begin(a, {{kX, Access::kWrite}});
  EXPECT_TRUE(Finish(a, first, 1).ok());
  EXPECT_TRUE(Finish(a, second, 2).ok());
}

TEST_F(FenceTableTest, ExpiredWaiterIsRejectedNamingBlocker) {
  const StreamKey a = Stream(1), b = Stream(2), c = Stream(3);
  Begin(a, {{kX, Access::kWrite}});
  EXPECT_TRUE(Queues(b, {{kX, Access::kRead}}));
  EXPECT_EQ(table_.next_deadline(), now_ + absl::Seconds(1));
  now_ += absl::Milliseconds(999);
  table_.Expire(Step());
  EXPECT_TRUE(outcomes_.empty());
  now_ += absl::Milliseconds(1);
  table_.Expire(Step());
  const absl::Status refused = Outcome().result.status();
  EXPECT_TRUE(IsRefusal(refused, Reason::kBlockInUse)) << refused;
  EXPECT_EQ(GetErrorDetails(refused)->metadata.at("pid"), "1");
  EXPECT_EQ(GetErrorDetails(refused)->metadata.at("held_ms"), "1000");
  EXPECT_EQ(table_.next_deadline(), absl::InfiniteFuture());
  // The expired prepare leaves nothing behind.
  EXPECT_TRUE(Queues(c, {{kX, Access::kRead}}));
}

TEST_F(FenceTableTest, InvalidFinishValueIsRejectedAndUseStaysOpen) {
  const StreamKey a = Stream(1), b = Stream(2);
  const Prepared writing = Begin(a, {{kX, Access::kWrite}});
  for (const uint64_t value : {uint64_t{0}, kFenceTop, UINT64_MAX}) {
    EXPECT_TRUE(IsRefusal(Finish(a, writing, value).status(), Reason::kInvalidField)) << value;
  }
  EXPECT_TRUE(Queues(b, {{kX, Access::kRead}}));
  EXPECT_TRUE(Finish(a, writing, 6).ok());
  EXPECT_EQ(Outcome().result->waits, Waits({{a, 6}}));
}

TEST_F(FenceTableTest, OvertakenFinishCountsInStreamOrder) {
  const StreamKey a = Stream(1), b = Stream(2), c = Stream(3);
  const Access kinds[] = {Access::kRead, Access::kWrite, Access::kReadWrite};
  for (const Access first : kinds) {
    for (const Access second : kinds) {
      const Prepared early = Begin(a, {{kX, first}});
      const Prepared late = Begin(a, {{kX, second}});
      const uint64_t value = values_[a] + 1;
      values_[a] = value + 1;
      ASSERT_TRUE(Finish(a, late, value + 1).ok());
      ASSERT_TRUE(Finish(a, early, value).ok());
      // The last write and the last read, in the stream's order.
      const uint64_t write = Writes(second) ? value + 1 : Writes(first) ? value : 0;
      const Prepared reading = Begin(b, {{kX, Access::kRead}});
      EXPECT_EQ(reading.waits, write > 0 ? Waits({{a, write}}) : Waits());
      EXPECT_TRUE(table_.Abandon(Step(), b.channel, reading.use).ok());
      EXPECT_EQ(Use(c, {{kX, Access::kWrite}}), Waits({Last(a)}));
      Done(a);
      Done(c);
    }
  }
}

TEST_F(FenceTableTest, ClosingStreamServesItsQueuedUses) {
  const StreamKey a = Stream(1), b = Stream(2);
  const Prepared writing = Begin(a, {{kX, Access::kWrite}});
  EXPECT_TRUE(Queues(b, {{kX, Access::kWrite}}));
  EXPECT_TRUE(table_.streams().Close(b).ok());
  EXPECT_TRUE(Finish(a, writing, 1).ok());
  const PrepareOutcome begun = Outcome();
  EXPECT_EQ(begun.result->waits, Waits({{a, 1}}));
  ASSERT_NE(table_.streams().Find(b), nullptr);
  EXPECT_TRUE(Finish(b, *begun.result, 1).ok());
  EXPECT_EQ(table_.streams().Find(b), nullptr);
}

TEST_F(FenceTableTest, LateFinishOfFullWriteScrubTorn) {
  const StreamKey a = Stream(1);
  Begin(Stream(3), {{kX, Access::kWrite}});
  Dies(3);
  ASSERT_TRUE(table_.Torn(kX));
  const Prepared whole = Begin(a, {{kX, Access::kWrite}});
  const Prepared on_top = Begin(a, {{kX, Access::kReadWrite}});
  EXPECT_EQ(*Finish(a, on_top, 2), std::vector<BlockId>({kX}));
  EXPECT_EQ(*Finish(a, whole, 1), std::vector<BlockId>());
  EXPECT_FALSE(table_.Torn(kX));
}

TEST_F(FenceTableTest, OnlyOwnProcessFinishesUseOnce) {
  const StreamKey a = Stream(1), b = Stream(2);
  const Prepared writing = Begin(a, {{kX, Access::kWrite}});
  EXPECT_TRUE(IsRefusal(Finish(b, writing, 1).status(), Reason::kNotFound));
  EXPECT_TRUE(IsRefusal(table_.Abandon(Step(), b.channel, writing.use), Reason::kNotFound));
  EXPECT_TRUE(Finish(a, writing, 1).ok());
  EXPECT_TRUE(IsRefusal(Finish(a, writing, 2).status(), Reason::kNotFound));
}

TEST_F(FenceTableTest, AbandonedUseHasNoEffect) {
  const StreamKey a = Stream(1), b = Stream(2), c = Stream(3);
  Use(a, {{kX, Access::kWrite}});
  const Prepared writing = Begin(b, {{kX, Access::kWrite}});
  EXPECT_TRUE(Queues(c, {{kX, Access::kRead}}));
  ASSERT_TRUE(table_.Abandon(Step(), b.channel, writing.use).ok());
  EXPECT_EQ(Outcome().result->waits, Waits({Last(a)}));
  EXPECT_FALSE(table_.Torn(kX));
}

TEST_F(FenceTableTest, PrepareBeyondLimitsIsRejected) {
  const StreamKey a = Stream(1), b = Stream(2);
  EXPECT_TRUE(IsRefusal(Prepare(a, {}).status(), Reason::kInvalidField));
  EXPECT_TRUE(
      IsRefusal(Prepare(a, std::vector<BlockUse>(5, {kX, Access::kRead})).status(), Reason::kInvalidField));
  EXPECT_TRUE(IsRefusal(Prepare({a.channel, 9}, {{kX, Access::kRead}}).status(), Reason::kNotFound));
  for (int i = 0; i < 3; ++i) Begin(a, {{kX, Access::kWrite}});
  EXPECT_TRUE(IsRefusal(Prepare(a, {{kX, Access::kWrite}}).status(), Reason::kLimit));
  EXPECT_TRUE(Queues(b, {{kX, Access::kRead}}));
  EXPECT_TRUE(Queues(b, {{kX, Access::kRead}}));
  EXPECT_TRUE(IsRefusal(Prepare(b, {{kX, Access::kRead}}).status(), Reason::kLimit));
}

TEST_F(FenceTableTest, LeavingWaiterUnblocksLaterWaiters) {
  const StreamKey a = Stream(1), b = Stream(2), c = Stream(3);
  Begin(a, {{kX, Access::kRead}});
  EXPECT_TRUE(Queues(b, {{kX, Access::kWrite}}));
  const RequestId writer = last_;
  EXPECT_TRUE(Queues(c, {{kX, Access::kRead}}));
  table_.Leave(Step(), writer);
  EXPECT_EQ(Outcome().request.channel, c.channel);
}

TEST_F(FenceTableTest, DeathDuringWriteLeavesBlockTorn) {
  const StreamKey a = Stream(1), b = Stream(2);
  Begin(a, {{kX, Access::kWrite}, {kY, Access::kRead}});
  EXPECT_TRUE(Queues(b, {{kX, Access::kRead}, {kY, Access::kWrite}}));
  Dies(1);
  const PrepareOutcome outcome = Outcome();
  EXPECT_EQ(outcome.result->waits, Waits());
  EXPECT_EQ(outcome.result->torn, std::vector<BlockId>({kX}));
  EXPECT_TRUE(table_.Torn(kX));
  EXPECT_FALSE(table_.Torn(kY));
}

TEST_F(FenceTableTest, DeathBeforeReachedValueLeavesBlockTorn) {
  const StreamKey a = Stream(1), b = Stream(2);
  Use(a, {{kX, Access::kWrite}});
  Use(b, {{kY, Access::kWrite}});
  Done(b);
  Dies(1);
  Dies(2);
  EXPECT_TRUE(table_.Torn(kX));
  EXPECT_FALSE(table_.Torn(kY));
  EXPECT_TRUE(table_.Idle(kX, read_));
}

TEST_F(FenceTableTest, DeadReaderLeavesBlockConsistent) {
  const StreamKey a = Stream(1);
  Use(a, {{kX, Access::kRead}});
  Begin(a, {{kX, Access::kRead}});
  Dies(1);
  EXPECT_FALSE(table_.Torn(kX));
  EXPECT_TRUE(table_.Idle(kX, read_));
}

TEST_F(FenceTableTest, TornIsReportedUntilFullWriteFinishes) {
  const StreamKey a = Stream(1), b = Stream(2);
  Begin(a, {{kX, Access::kWrite}});
  Dies(1);
  const Prepared reading = Begin(b, {{kX, Access::kReadWrite}});
  EXPECT_EQ(reading.torn, std::vector<BlockId>({kX}));
  EXPECT_EQ(*Finish(b, reading, 1), std::vector<BlockId>({kX}));
  const Prepared writing = Begin(b, {{kX, Access::kWrite}});
  EXPECT_EQ(writing.torn, std::vector<BlockId>({kX}));
  EXPECT_EQ(*Finish(b, writing, 2), std::vector<BlockId>());
  EXPECT_EQ(Begin(b, {{kX, Access::kRead}}).torn, std::vector<BlockId>());
}

TEST_F(FenceTableTest, FinishReportsTornAfterWriterDeath) {
  const StreamKey a = Stream(1), b = Stream(2);
  Use(a, {{kX, Access::kWrite}});
  const Prepared reading = Begin(b, {{kX, Access::kRead}});
  EXPECT_EQ(reading.torn, std::vector<BlockId>());
  Dies(1);
  EXPECT_EQ(*Finish(b, reading, 1), std::vector<BlockId>({kX}));
}

TEST_F(FenceTableTest, ReadWriteUponDyingWriteIsTornWriteIsNot) {
  const StreamKey a = Stream(1), b = Stream(2);
  Use(a, {{kX, Access::kWrite}, {kY, Access::kWrite}});
  Use(b, {{kX, Access::kReadWrite}});
  Use(b, {{kY, Access::kWrite}});
  Dies(1);
  EXPECT_TRUE(table_.Torn(kX));
  EXPECT_FALSE(table_.Torn(kY));
}

TEST_F(FenceTableTest, WaitsOfDeadWriteRemain) {
  const StreamKey a = Stream(1), b = Stream(2), c = Stream(3), d = Stream(4);
  Use(a, {{kX, Access::kWrite}});
  Use(b, {{kX, Access::kRead}});
  Use(c, {{kX, Access::kWrite}});
  // The write of c waited for a's and b's uses, which are still running; its own fence values are at the maximum.
  Dies(3);
  EXPECT_EQ(Use(d, {{kX, Access::kRead}}), Waits({Last(a), Last(b)}));
}

TEST_F(FenceTableTest, HandOverBlocksOtherUsesUntilItEnds) {
  const StreamKey a = Stream(1), b = Stream(2);
  table_.BeginHandOver(now_, kX, a.channel, ProcessInfo{.pid = 1, .name = "p"});
  EXPECT_TRUE(table_.HandingOver(kX));
  EXPECT_TRUE(Queues(b, {{kX, Access::kRead}}));
  EXPECT_FALSE(table_.EndHandOver(Step(), kX, b.channel, {}));
  EXPECT_FALSE(table_.EndHandOver(Step(), kY, a.channel, {}));
  EXPECT_TRUE(table_.EndHandOver(
      Step(), kX, a.channel,
      {{a.slot, 3, Access::kWrite}, {a.slot + 1, 9, Access::kWrite}, {a.slot, 5, Access::kRead}}));
  EXPECT_EQ(Outcome().result->waits, Waits({{a, 3}}));
  EXPECT_EQ(table_.Pending(kX, read_), Waits({{a, 5}}));
  EXPECT_FALSE(table_.EndHandOver(Step(), kX, a.channel, {}));
}

TEST_F(FenceTableTest, MissingHandOverNamesItsProcess) {
  const StreamKey a = Stream(1);
  table_.BeginHandOver(now_, kX, a.channel, ProcessInfo{.pid = 1, .name = "p"});
  const absl::Status refused = table_.HandOverRefusal(now_ + absl::Seconds(1), kX);
  EXPECT_TRUE(IsRefusal(refused, Reason::kBlockInUse));
  EXPECT_EQ(GetErrorDetails(refused)->metadata.at("pid"), "1");
}

TEST_F(FenceTableTest, UnsharedBlockOfDeadProcessIsTornOnlyIfInUse) {
  const StreamKey a = Stream(1), b = Stream(2);
  fence_values_[a] = {.begun = 4, .ended = 4};
  fence_values_[b] = {.begun = 5, .ended = 4};
  table_.BeginHandOver(now_, kX, a.channel, ProcessInfo{});
  table_.BeginHandOver(now_, kY, b.channel, ProcessInfo{});
  Dies(1, {kX});
  Dies(2, {kY});
  EXPECT_FALSE(table_.Torn(kX));
  EXPECT_TRUE(table_.Torn(kY));
  EXPECT_FALSE(table_.HandingOver(kX));
}

TEST_F(FenceTableTest, FreedBlockRejectsQueuedUsesAndIdlesAfterLast) {
  const StreamKey a = Stream(1), b = Stream(2);
  const Prepared writing = Begin(a, {{kX, Access::kWrite}});
  EXPECT_TRUE(Queues(b, {{kX, Access::kRead}}));
  table_.Refuse(Step(), kX, Refuse(Reason::kStale, "freed"));
  EXPECT_TRUE(IsRefusal(Outcome().result.status(), Reason::kStale));
  EXPECT_FALSE(table_.Idle(kX, read_));
  ASSERT_TRUE(Finish(a, writing, 1).ok());
  EXPECT_FALSE(table_.Idle(kX, read_));
  fence_values_[a].done = 1;
  EXPECT_TRUE(table_.Idle(kX, read_));
  table_.Erase(kX);
}

TEST_F(FenceTableTest, ViewShowsAgeOfOpenUse) {
  const StreamKey a = Stream(1);
  fence_values_[a] = {.done = 1, .begun = 2, .ended = 1};
  now_ += absl::Seconds(3);
  Begin(a, {{kX, Access::kWrite}});
  const std::vector<StreamView> views = table_.View(read_);
  ASSERT_EQ(views.size(), 1u);
  EXPECT_EQ(views[0].process.pid, 1);
  EXPECT_EQ(views[0].open_uses, 1u);
  EXPECT_EQ(views[0].open_since, now_);
  EXPECT_EQ(views[0].fence_values.begun, 2u);
}

}  // namespace
}  // namespace berth::core
