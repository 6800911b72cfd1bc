#include "common/wire/fence_page.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/os/memfd.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

TEST(FencePageTest, ReadersSeeOwnersValuesButCannotWrite) {
  const absl::StatusOr<UniqueFd> fd = CreateFencePage(ChannelId(7));
  ASSERT_TRUE(fd.ok()) << fd.status();
  absl::StatusOr<FencePage> owner = FencePage::MapWritable(fd->get());
  ASSERT_TRUE(owner.ok()) << owner.status();
  const absl::StatusOr<UniqueFd> read_only = ReopenReadOnly(fd->get());
  ASSERT_TRUE(read_only.ok()) << read_only.status();
  const absl::StatusOr<FencePage> reader = FencePage::MapReadOnly(read_only->get());
  ASSERT_TRUE(reader.ok()) << reader.status();

  EXPECT_EQ(reader->channel(), ChannelId(7));
  EXPECT_EQ(reader->slot(kFenceSlots - 1).done.load(), 0u);
  owner->writable_slot(kFenceSlots - 1).done.store(3);
  EXPECT_EQ(reader->slot(kFenceSlots - 1).done.load(), 3u);
  EXPECT_FALSE(FencePage::MapWritable(read_only->get()).ok());
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, read_only->get(), 0), MAP_FAILED);
}

TEST(FencePageTest, SetTopRaisesEveryFenceValue) {
  const absl::StatusOr<UniqueFd> fd = CreateFencePage(ChannelId(7));
  ASSERT_TRUE(fd.ok()) << fd.status();
  absl::StatusOr<FencePage> page = FencePage::MapWritable(fd->get());
  ASSERT_TRUE(page.ok()) << page.status();
  page->writable_slot(4).done.store(9);
  page->writable_slot(4).begun.store(10);
  page->SetTop();
  for (uint32_t slot = 0; slot < kFenceSlots; ++slot) EXPECT_EQ(page->slot(slot).done.load(), kFenceTop);
  EXPECT_EQ(page->slot(4).begun.load(), 10u);
}

TEST(FencePageTest, FencePageCannotBeResized) {
  const absl::StatusOr<UniqueFd> fd = CreateFencePage(ChannelId(7));
  ASSERT_TRUE(fd.ok()) << fd.status();
  EXPECT_EQ(::ftruncate(fd->get(), 0), -1);
  EXPECT_EQ(::ftruncate(fd->get(), sizeof(FencePageLayout) + 4096), -1);
}

TEST(FencePageTest, InvalidFileIsRejected) {
  const absl::StatusOr<UniqueFd> small = CreateMemfd("small", 64);
  ASSERT_TRUE(small.ok());
  EXPECT_EQ(FencePage::MapReadOnly(small->get()).status().code(), absl::StatusCode::kInvalidArgument);
  const absl::StatusOr<UniqueFd> blank = CreateMemfd("blank", sizeof(FencePageLayout));
  ASSERT_TRUE(blank.ok());
  EXPECT_EQ(FencePage::MapReadOnly(blank->get()).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace berth
