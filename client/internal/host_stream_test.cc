#include "client/internal/host_stream.h"

#include <atomic>
#include <memory>
#include <vector>

#include "common/memfd.h"
#include "common/notification.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

MappedPage Page() {
  return MappedPage(*FencePage::MapWritable(CreateFencePage(ChannelId(1))->get()), /*read_only=*/false);
}

TEST(HostStreamTest, RunsWorkAndWritesWordsInTheirOrder) {
  MappedPage page = Page();
  HostStream stream([] { return false; });
  std::vector<uint64_t> seen;
  for (uint64_t value = 1; value <= 3; ++value) {
    ASSERT_TRUE(stream.Enqueue([&] { seen.push_back(page.slot(0).done.load()); }).ok());
    ASSERT_TRUE(stream.Write(page, 0, value).ok());
  }
  ASSERT_TRUE(stream.Synchronize().ok());
  EXPECT_EQ(seen, std::vector<uint64_t>({0, 1, 2}));
  EXPECT_EQ(page.slot(0).done.load(), 3u);
}

TEST(HostStreamTest, WaitsForAWordOfAnotherStream) {
  MappedPage page = Page();
  HostStream first([] { return false; });
  HostStream second([] { return false; });
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

// A stream that is held up until the gate is opened.
struct Gated {
  Gated() {
    EXPECT_TRUE(stream.Enqueue([this] { gate.WaitForNotification(); }).ok());
  }
  Notification gate;
  HostStream stream{[] { return false; }};
};

TEST(HostStreamTest, WaitsForWhatAnEventStandsForWhenTheWaitIsQueued) {
  Gated first;
  HostStream second([] { return false; });
  std::atomic<int> order = 0;
  int written = 0;
  int read = 0;
  const std::unique_ptr<StreamEvent> event = *first.stream.CreateEvent();
  // Never recorded, it stands for nothing.
  EXPECT_TRUE(*first.stream.Reached(*event));
  ASSERT_TRUE(second.WaitEvent(*event).ok());
  ASSERT_TRUE(second.Synchronize().ok());
  ASSERT_TRUE(first.stream.Enqueue([&] { written = ++order; }).ok());
  ASSERT_TRUE(first.stream.Record(*event).ok());
  ASSERT_TRUE(second.WaitEvent(*event).ok());
  ASSERT_TRUE(second.Enqueue([&] { read = ++order; }).ok());
  EXPECT_FALSE(*first.stream.Reached(*event));
  // Recorded anew, it stands for more; the wait that is queued does not.
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

TEST(HostStreamTest, AnEventsWordComesWithItWhateverIsQueuedBehind) {
  MappedPage page = Page();
  Gated first;
  HostStream second([] { return false; });
  std::unique_ptr<StreamEvent> event = *first.stream.CreateEvent();
  ASSERT_TRUE(first.stream.Record(*event).ok());
  Notification behind;
  ASSERT_TRUE(first.stream.Enqueue([&] { behind.WaitForNotification(); }).ok());
  ASSERT_TRUE(first.stream.Publish(*event, page, 0, 4).ok());
  EXPECT_EQ(page.slot(0).done.load(), 0u);
  // The word comes though the event is gone.
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

TEST(HostStreamTest, TheWordsOfTheDeadLetItOn) {
  MappedPage page = Page();
  HostStream stream([] { return false; });
  ASSERT_TRUE(stream.Wait(page, 7, 1'000'000).ok());
  page.page().SetTop();
  EXPECT_TRUE(stream.Synchronize().ok());
}

TEST(HostStreamTest, WhatWaitsWhenTheSessionEndsDoesNotRunAndDoesNotHang) {
  MappedPage page = Page();
  std::atomic<bool> over = false;
  auto stream = std::make_unique<HostStream>([&] { return over.load(); });
  bool ran = false;
  ASSERT_TRUE(stream->Wait(page, 0, 1).ok());
  ASSERT_TRUE(stream->Enqueue([&] { ran = true; }).ok());
  over = true;
  EXPECT_EQ(stream->Synchronize().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(stream->Enqueue([] {}).code(), absl::StatusCode::kUnavailable);
  stream.reset();
  EXPECT_FALSE(ran);
}

TEST(HostStreamTest, ItsEndWaitsForWhatIsQueued) {
  std::atomic<int> ran = 0;
  {
    HostStream stream([] { return false; });
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(stream.Enqueue([&] { ++ran; }).ok());
  }
  EXPECT_EQ(ran, 100);
}

}  // namespace
}  // namespace berth::internal
