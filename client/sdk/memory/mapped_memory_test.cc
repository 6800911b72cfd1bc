#include "berth/v1/resources.pb.h"
#include "client/sdk/memory/mapped_memory.h"

#include <fcntl.h>
#include <string.h>

#include <berth/error.h>

#include "common/os/memfd.h"
#include "gtest/gtest.h"

namespace berth::internal {
namespace {

v1::Block HostBlock(uint64_t bytes) {
  v1::Block block;
  block.set_kind(v1::MEMORY_KIND_HOST);
  block.set_bytes(bytes);
  return block;
}

TEST(MappedMemoryTest, MappingsOfHostBlockShareMemoryWithoutFd) {
  auto fd = CreateMemfd("block", 8192);
  ASSERT_TRUE(fd.ok());
  auto writer = MapMemory(HostBlock(8192), fd->get(), /*read_only=*/false);
  auto reader = MapMemory(HostBlock(8192), fd->get(), /*read_only=*/true);
  ASSERT_TRUE(writer.ok() && reader.ok());
  fd->reset();
  memcpy(static_cast<char*>((*writer)->address()) + 8000, "berth", 6);
  EXPECT_STREQ(static_cast<char*>((*reader)->address()) + 8000, "berth");
}

TEST(MappedMemoryTest, ReadOnlyFdCannotBeMappedForWriting) {
  auto fd = CreateMemfd("block", 4096);
  ASSERT_TRUE(fd.ok());
  auto read_only = ReopenReadOnly(fd->get());
  ASSERT_TRUE(read_only.ok());
  EXPECT_FALSE(MapMemory(HostBlock(4096), read_only->get(), /*read_only=*/false).ok());
  EXPECT_TRUE(MapMemory(HostBlock(4096), read_only->get(), /*read_only=*/true).ok());
}

TEST(MappedMemoryTest, TooSmallFdIsRejected) {
  auto fd = CreateMemfd("block", 4096);
  ASSERT_TRUE(fd.ok());
  EXPECT_TRUE(absl::IsDataLoss(MapMemory(HostBlock(8192), fd->get(), false).status()));
}

TEST(MappedMemoryTest, FutureKindIsUnsupported) {
  v1::Block block = HostBlock(4096);
  block.set_kind(static_cast<v1::MemoryKind>(99));
  EXPECT_TRUE(IsRefusal(MapMemory(block, -1, false).status(), Reason::kUnsupported));
}

}  // namespace
}  // namespace berth::internal
