#include "client/sdk/fences/stream_fence_value.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

class FakeStream final : public StreamBackend {
 public:
  FakeStream() : StreamBackend(StreamKind::kHost) {}
  absl::Status CheckSupport() override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<StreamEvent>> CreateEvent() override {
    return std::make_unique<StreamEvent>();
  }
  absl::Status Record(StreamEvent&) override { return absl::OkStatus(); }
  absl::Status WaitEvent(StreamEvent&) override { return absl::OkStatus(); }
  absl::Status Wait(MappedPage&, uint32_t, uint64_t) override { return absl::OkStatus(); }
  absl::Status Write(MappedPage&, uint32_t slot, uint64_t value) override {
    absl::StrAppend(&log, "write ", slot, "=", value, " ");
    return status;
  }
  absl::StatusOr<bool> Reached(StreamEvent&) override { return false; }
  absl::Status Publish(StreamEvent&, MappedPage&, uint32_t slot, uint64_t value) override {
    absl::StrAppend(&log, "publish ", slot, "=", value, " ");
    return status;
  }
  absl::Status Enqueue(std::function<void()>) override { return absl::OkStatus(); }
  absl::Status Synchronize() override { return absl::OkStatus(); }

  std::string log;
  absl::Status status;
};

class StreamFenceValueTest : public testing::Test {
 protected:
  MappedPage page_{*FencePage::MapWritable(CreateFencePage(ChannelId(1))->get()), /*read_only=*/false};
  FakeStream stream_;
  StreamEvent event_;
  StreamFenceValue value_{&page_, 3, &stream_, 10};
};

TEST_F(StreamFenceValueTest, ValuesContinueFromSlotsLast) {
  EXPECT_EQ(*value_.Queue(0), 11u);
  EXPECT_EQ(*value_.Queue(0), 12u);
  EXPECT_EQ(stream_.log, "write 3=11 write 3=12 ");
}

TEST_F(StreamFenceValueTest, EventBehindLastValueGetsOwnValue) {
  EXPECT_EQ(*value_.Publish(event_, 1), 11u);
  EXPECT_EQ(*value_.Queue(1), 12u);
  EXPECT_EQ(*value_.Publish(event_, 2), 13u);
  EXPECT_EQ(stream_.log, "publish 3=11 write 3=12 publish 3=13 ");
}

TEST_F(StreamFenceValueTest, EventBeforePendingValueSharesIt) {
  // A newly published value above 11 would be reached before 11.
  EXPECT_EQ(*value_.Queue(4), 11u);
  for (uint64_t place = 1; place <= 4; ++place) EXPECT_EQ(*value_.Publish(event_, place), 11u);
  EXPECT_EQ(*value_.Publish(event_, 6), 12u);
  EXPECT_EQ(*value_.Publish(event_, 5), 12u);
  EXPECT_EQ(stream_.log, "write 3=11 publish 3=12 ");
}

TEST_F(StreamFenceValueTest, FailedPublishIsRepeated) {
  stream_.status = absl::InternalError("driver");
  EXPECT_FALSE(value_.Queue(0).ok());
  EXPECT_FALSE(value_.Publish(event_, 1).ok());
  stream_.status = absl::OkStatus();
  EXPECT_EQ(*value_.Publish(event_, 1), 12u);
  EXPECT_EQ(*value_.Queue(1), 13u);
}

}  // namespace
}  // namespace berth::internal
