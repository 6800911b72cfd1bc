#include "client/sdk/fences/host_stream.h"

#include <atomic>
#include <memory>
#include <vector>

#include "common/notification.h"
#include "common/os/memfd.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

MappedPage Page() {
  return MappedPage(*FencePage::MapWritable(CreateFencePage(ChannelId(1))->get()), /*read_only=*/false);
}

TEST(HostStreamTest, WorkAndValuesRunInOrder) {
  MappedPage page = Page();
  const std::unique_ptr<HostStream> stream_owner = *HostStream::Start([] { return false; });
  HostStream& stream = *stream_owner;
  std::vector<uint64_t> seen;
  for (uint64_t value = 1; value <= 3; ++value) {
    ASSERT_TRUE(stream.Enqueue([&] { seen.push_back(page.slot(0).done.load()); }).ok());
    ASSERT_TRUE(stream.Write(page, 0, value).ok());
  }
  ASSERT_TRUE(stream.Synchronize().ok());
  EXPECT_EQ(seen, std::vector<uint64_t>({0, 1, 2}));
  EXPECT_EQ(page.slot(0).done.load(), 3u);
}

TEST(HostStreamTest, StreamWaitsForFenceValueOfOther) {
  MappedPage page = Page();
  const std::unique_ptr<HostStream> first_owner = *HostStream::Start([] { return false; });
  HostStream& first = *first_owner;
  const std::unique_ptr<HostStream> second_owner = *HostStream::Start([] { return false; });
  HostStream& second = *second_owner;
  Notification gate;
  std::atomic<int> order = 0;
  int written = 0;
  int read = 0;
  ASSERT_TRUE(first.Enqueue([&] { gate.WaitForNotification(); }).ok());
  ASSERT_TRUE(first.Enqueue([&] { written = ++order; }).ok());
  ASSERT_TRUE(first.Write(page, 0, 1).ok());
  ASSERT_TRUE(second.Wait(page, 0, 1).ok());
  ASSERT_TRUE(second.Enqueue([&] { read = ++order; }).ok());
  gate.Notify();
  ASSERT_TRUE(second.Synchronize().ok());
  EXPECT_EQ(written, 1);
  EXPECT_EQ(read, 2);
}

// A stream that is blocked until the gate is opened.
struct Gated {
  Gated() {
    EXPECT_TRUE(stream.Enqueue([this] { gate.WaitForNotification(); }).ok());
  }
  Notification gate;
  const std::unique_ptr<HostStream> stream_owner = *HostStream::Start([] { return false; });
  HostStream& stream = *stream_owner;
};

TEST(HostStreamTest, WaitCoversWorkRecordedBeforeIt) {
  Gated first;
  const std::unique_ptr<HostStream> second_owner = *HostStream::Start([] { return false; });
  HostStream& second = *second_owner;
  std::atomic<int> order = 0;
  int written = 0;
  int read = 0;
  const std::unique_ptr<StreamEvent> event = *first.stream.CreateEvent();
  // An event that was never recorded represents no work.
  EXPECT_TRUE(*first.stream.Reached(*event));
  ASSERT_TRUE(second.WaitEvent(*event).ok());
  ASSERT_TRUE(second.Synchronize().ok());
  ASSERT_TRUE(first.stream.Enqueue([&] { written = ++order; }).ok());
  ASSERT_TRUE(first.stream.Record(*event).ok());
  ASSERT_TRUE(second.WaitEvent(*event).ok());
  ASSERT_TRUE(second.Enqueue([&] { read = ++order; }).ok());
  EXPECT_FALSE(*first.stream.Reached(*event));
  // Recorded anew, the event represents more work; the queued wait does not include it.
  Notification more;
  ASSERT_TRUE(first.stream.Enqueue([&] { more.WaitForNotification(); }).ok());
  ASSERT_TRUE(first.stream.Record(*event).ok());
  first.gate.Notify();
  ASSERT_TRUE(second.Synchronize().ok());
  EXPECT_EQ(written, 1);
  EXPECT_EQ(read, 2);
  EXPECT_FALSE(*first.stream.Reached(*event));
  more.Notify();
  ASSERT_TRUE(first.stream.Synchronize().ok());
  EXPECT_TRUE(*first.stream.Reached(*event));
}

TEST(HostStreamTest, PublishedEventIgnoresLaterWork) {
  MappedPage page = Page();
  Gated first;
  const std::unique_ptr<HostStream> second_owner = *HostStream::Start([] { return false; });
  HostStream& second = *second_owner;
  std::unique_ptr<StreamEvent> event = *first.stream.CreateEvent();
  ASSERT_TRUE(first.stream.Record(*event).ok());
  Notification behind;
  ASSERT_TRUE(first.stream.Enqueue([&] { behind.WaitForNotification(); }).ok());
  ASSERT_TRUE(first.stream.Publish(*event, page, 0, 4).ok());
  EXPECT_EQ(page.slot(0).done.load(), 0u);
  // The value is reached although the event is destroyed.
  event.reset();
  first.gate.Notify();
  ASSERT_TRUE(second.Wait(page, 0, 4).ok());
  ASSERT_TRUE(second.Synchronize().ok());
  behind.Notify();
  ASSERT_TRUE(first.stream.Synchronize().ok());
  event = *first.stream.CreateEvent();
  ASSERT_TRUE(first.stream.Record(*event).ok());
  ASSERT_TRUE(first.stream.Synchronize().ok());
  ASSERT_TRUE(first.stream.Publish(*event, page, 0, 5).ok());
  EXPECT_EQ(page.slot(0).done.load(), 5u);
}

TEST(HostStreamTest, MaximumFenceValuesEndWaits) {
  MappedPage page = Page();
  const std::unique_ptr<HostStream> stream_owner = *HostStream::Start([] { return false; });
  HostStream& stream = *stream_owner;
  ASSERT_TRUE(stream.Wait(page, 7, 1'000'000).ok());
  page.page().SetTop();
  EXPECT_TRUE(stream.Synchronize().ok());
}

TEST(HostStreamTest, SessionEndCancelsQueuedWork) {
  MappedPage page = Page();
  std::atomic<bool> over = false;
  auto stream = *HostStream::Start([&] { return over.load(); });
  bool ran = false;
  ASSERT_TRUE(stream->Wait(page, 0, 1).ok());
  ASSERT_TRUE(stream->Enqueue([&] { ran = true; }).ok());
  over = true;
  EXPECT_EQ(stream->Synchronize().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(stream->Enqueue([] {}).code(), absl::StatusCode::kUnavailable);
  stream.reset();
  EXPECT_FALSE(ran);
}

TEST(HostStreamTest, DestructionWaitsForQueuedWork) {
  std::atomic<int> ran = 0;
  {
    const std::unique_ptr<HostStream> stream_owner = *HostStream::Start([] { return false; });
    HostStream& stream = *stream_owner;
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(stream.Enqueue([&] { ++ran; }).ok());
  }
  EXPECT_EQ(ran, 100);
}

}  // namespace
}  // namespace berth::internal
