#include "client/sdk/fences/fence_pages.h"

#include <thread>

#include "common/os/memfd.h"
#include "common/steady_clock.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

absl::Time Soon() { return SteadyNow() + absl::Seconds(30); }

TEST(FencePagesTest, PageIsAvailableAfterArrival) {
  FencePages pages;
  EXPECT_EQ(pages.Await(ChannelId(2), absl::InfinitePast()).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  absl::StatusOr<MappedPage*> page = nullptr;
  std::thread waiter([&] { page = pages.Await(ChannelId(2), Soon()); });
  UniqueFd fd = *CreateFencePage(ChannelId(2));
  FencePage writer = *FencePage::MapWritable(fd.get());
  pages.Put(ChannelId(2), std::move(fd));
  waiter.join();
  ASSERT_TRUE(page.ok()) << page.status();
  writer.writable_slot(3).done.store(9);
  EXPECT_EQ((*page)->slot(3).done.load(), 9u);
  EXPECT_EQ(*pages.Await(ChannelId(2), absl::InfinitePast()), *page);
}

TEST(FencePagesTest, AbsentOrInvalidPageEndsWait) {
  FencePages pages;
  pages.Put(ChannelId(2), UniqueFd());
  pages.Put(ChannelId(3), *CreateMemfd("none", 64));
  EXPECT_EQ(*pages.Await(ChannelId(2), absl::InfinitePast()), nullptr);
  EXPECT_EQ(*pages.Await(ChannelId(3), absl::InfinitePast()), nullptr);
}

TEST(FencePagesTest, FirstOwnPageStays) {
  FencePages pages;
  EXPECT_EQ(pages.own(), nullptr);
  EXPECT_FALSE(pages.SetOwn(*CreateMemfd("none", 64)).ok());
  ASSERT_TRUE(pages.SetOwn(*CreateFencePage(ChannelId(1))).ok());
  MappedPage* const own = pages.own();
  own->page().writable_slot(0).done.store(5);
  ASSERT_TRUE(pages.SetOwn(*CreateFencePage(ChannelId(1))).ok());
  EXPECT_EQ(pages.own(), own);
}

TEST(FencePagesTest, SessionEndEndsWait) {
  FencePages pages;
  absl::StatusOr<MappedPage*> page = nullptr;
  std::thread waiter([&] { page = pages.Await(ChannelId(2), Soon()); });
  pages.End(absl::UnavailableError("over"));
  waiter.join();
  EXPECT_EQ(page.status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace berth::internal
