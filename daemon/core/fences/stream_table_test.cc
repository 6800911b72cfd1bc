#include "daemon/core/fences/stream_table.h"

#include <map>

#include <berth/error.h>

#include "common/wire/fence_page.h"
#include "gtest/gtest.h"

namespace berth::core {
namespace {

constexpr ChannelId kA{1};
constexpr ChannelId kB{2};

class StreamTableTest : public testing::Test {
 protected:
  absl::StatusOr<StreamKey> Open(ChannelId channel, uint32_t device = 0, bool default_stream = false) {
    return table_.Open(absl::UnixEpoch(), channel, ProcessInfo{.pid = 42}, device, default_stream,
                       [this](StreamKey stream) { return fence_values_[stream]; });
  }

  Journal journal_;
  StreamTable table_{&journal_, 2};
  std::map<StreamKey, FenceValues> fence_values_;
};

TEST_F(StreamTableTest, StreamIdsCountPerDeviceSlotsPerProcess) {
  const StreamKey first = *Open(kA);
  const StreamKey second = *Open(kA);
  const StreamKey elsewhere = *Open(kA, 1);
  EXPECT_EQ(table_.Find(first)->id, 1u);
  EXPECT_EQ(table_.Find(second)->id, 2u);
  EXPECT_EQ(table_.Find(elsewhere)->id, 1u);
  EXPECT_EQ(elsewhere.slot, 2u);
  EXPECT_EQ(Open(kB)->slot, 0u);
}

TEST_F(StreamTableTest, StreamBeyondLimitIsRejected) {
  ASSERT_TRUE(Open(kA).ok());
  ASSERT_TRUE(Open(kA).ok());
  const absl::Status refused = Open(kA).status();
  EXPECT_TRUE(IsRefusal(refused, Reason::kLimit)) << refused;
  EXPECT_EQ(GetErrorDetails(refused)->metadata.at("what"), "streams_per_device");
  EXPECT_EQ(GetErrorDetails(refused)->metadata.at("limit"), "2");
  EXPECT_EQ(table_.SlotsOf(kA), 2u);
}

TEST_F(StreamTableTest, DefaultStreamIsIdZeroOnceBesideLimit) {
  ASSERT_TRUE(Open(kA).ok());
  ASSERT_TRUE(Open(kA).ok());
  const absl::StatusOr<StreamKey> stream = Open(kA, 0, true);
  ASSERT_TRUE(stream.ok()) << stream.status();
  EXPECT_EQ(table_.Find(*stream)->id, 0u);
  EXPECT_TRUE(IsRefusal(Open(kA, 0, true).status(), Reason::kStreamMisuse));
  EXPECT_TRUE(Open(kA, 1, true).ok());
}

TEST_F(StreamTableTest, ClosedStreamsIdAndSlotAreReusedAfterItsWork) {
  const StreamKey first = *Open(kA);
  table_.RecordValue(first, 3);
  fence_values_[first] = {.done = 2, .begun = 7, .ended = 6};
  ASSERT_TRUE(table_.Close(first).ok());
  EXPECT_EQ(table_.Find(first), nullptr);
  const StreamKey meanwhile = *Open(kA);
  EXPECT_EQ(meanwhile.slot, 1u);
  EXPECT_EQ(table_.Find(meanwhile)->id, 1u);
  fence_values_[first].done = 3;
  const StreamKey later = *Open(kA);
  EXPECT_EQ(later.slot, 2u);
  ASSERT_TRUE(table_.Close(later).ok());
  fence_values_[first].ended = 7;
  const StreamKey again = *Open(kA);
  EXPECT_EQ(again, first);
  EXPECT_EQ(table_.Find(again)->last_value, 3u);
}

TEST_F(StreamTableTest, ReopenedSlotContinuesFromWrittenValue) {
  const StreamKey first = *Open(kA);
  fence_values_[first].done = 9;
  ASSERT_TRUE(table_.Close(first).ok());
  EXPECT_EQ(table_.Find(*Open(kA))->last_value, 9u);
  const StreamKey fresh = *Open(kA);
  EXPECT_EQ(table_.Find(fresh)->last_value, 0u);
  ASSERT_TRUE(table_.Close(fresh).ok());
  ASSERT_TRUE(table_.Close(first).ok());
  fence_values_[first].done = UINT64_MAX;
  EXPECT_EQ(table_.Find(*Open(kA))->last_value, kFenceTop - 1);
}

TEST_F(StreamTableTest, UnknownStreamIsNotFoundAndUsedStreamClosesLater) {
  const StreamKey stream = *Open(kA);
  EXPECT_TRUE(IsRefusal(table_.Close({kA, 9}), Reason::kNotFound));
  EXPECT_TRUE(IsRefusal(table_.Close({kB, stream.slot}), Reason::kNotFound));
  table_.AddUse(stream);
  table_.AddPrepare(stream);
  EXPECT_TRUE(table_.Close(stream).ok());
  // A closing stream accepts no further uses.
  EXPECT_TRUE(IsRefusal(table_.Check(stream), Reason::kNotFound));
  EXPECT_TRUE(IsRefusal(table_.Close(stream), Reason::kNotFound));
  table_.EndUse(stream);
  ASSERT_NE(table_.Find(stream), nullptr);
  table_.EndPrepare(stream);
  EXPECT_EQ(table_.Find(stream), nullptr);
}

TEST_F(StreamTableTest, PageHasLimitedSlots) {
  for (uint32_t i = 0; i < kFenceSlots; ++i) {
    const StreamKey stream = *Open(kA);
    EXPECT_EQ(stream.slot, i);
    // The work never ends, so its slot never becomes free.
    fence_values_[stream] = {.begun = 1};
    ASSERT_TRUE(table_.Close(stream).ok());
  }
  const absl::Status refused = Open(kA).status();
  EXPECT_TRUE(IsRefusal(refused, Reason::kLimit));
  EXPECT_EQ(GetErrorDetails(refused)->metadata.at("what"), "streams_per_process");
}

TEST_F(StreamTableTest, ErasedProcessLeavesNothing) {
  ASSERT_TRUE(Open(kA).ok());
  EXPECT_TRUE(table_.Knows(kA));
  table_.Erase(kA);
  EXPECT_FALSE(table_.Knows(kA));
  EXPECT_EQ(table_.SlotsOf(kA), 0u);
}

}  // namespace
}  // namespace berth::core
