#include "client/internal/stream_word.h"

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

class StreamWordTest : public testing::Test {
 protected:
  MappedPage page_{*FencePage::MapWritable(CreateFencePage(ChannelId(1))->get()), /*read_only=*/false};
  FakeStream stream_;
  StreamEvent event_;
  StreamWord word_{&page_, 3, &stream_, 10};
};

TEST_F(StreamWordTest, ValuesGoOnFromTheSlotsLast) {
  EXPECT_EQ(*word_.Queue(0), 11u);
  EXPECT_EQ(*word_.Queue(0), 12u);
  EXPECT_EQ(stream_.log, "write 3=11 write 3=12 ");
}

TEST_F(StreamWordTest, AnEventBehindTheLastValueGetsOneOfItsOwn) {
  EXPECT_EQ(*word_.Publish(event_, 1), 11u);
  EXPECT_EQ(*word_.Queue(1), 12u);
  EXPECT_EQ(*word_.Publish(event_, 2), 13u);
  EXPECT_EQ(stream_.log, "publish 3=11 write 3=12 publish 3=13 ");
}

TEST_F(StreamWordTest, AnEventBeforeAValueUnderWayHasThatOne) {
  // Published, a value above 11 would come to pass before 11 does.
  EXPECT_EQ(*word_.Queue(4), 11u);
  for (uint64_t place = 1; place <= 4; ++place) EXPECT_EQ(*word_.Publish(event_, place), 11u);
  EXPECT_EQ(*word_.Publish(event_, 6), 12u);
  EXPECT_EQ(*word_.Publish(event_, 5), 12u);
  EXPECT_EQ(stream_.log, "write 3=11 publish 3=12 ");
}

TEST_F(StreamWordTest, WhatFailedIsPublishedAgain) {
  stream_.status = absl::InternalError("driver");
  EXPECT_FALSE(word_.Queue(0).ok());
  EXPECT_FALSE(word_.Publish(event_, 1).ok());
  stream_.status = absl::OkStatus();
  EXPECT_EQ(*word_.Publish(event_, 1), 12u);
  EXPECT_EQ(*word_.Queue(1), 13u);
}

}  // namespace
}  // namespace berth::internal
