#include "common/wire/state_page.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/os/memfd.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

TEST(StatePageTest, ReadersSeeWrittenStateButCannotWrite) {
  const absl::StatusOr<UniqueFd> fd = CreateStatePage();
  ASSERT_TRUE(fd.ok()) << fd.status();
  absl::StatusOr<StatePage> writer = StatePage::MapWritable(fd->get());
  ASSERT_TRUE(writer.ok()) << writer.status();
  const absl::StatusOr<UniqueFd> read_only = ReopenReadOnly(fd->get());
  ASSERT_TRUE(read_only.ok()) << read_only.status();
  const absl::StatusOr<StatePage> reader = StatePage::MapReadOnly(read_only->get());
  ASSERT_TRUE(reader.ok()) << reader.status();

  EXPECT_EQ((*reader)->devices[3].generation.load(), 0u);
  writer->writable().devices[3].generation.store(1);
  writer->writable().incarnation.store(42);
  EXPECT_EQ((*reader)->devices[3].generation.load(), 1u);
  EXPECT_EQ((*reader)->incarnation.load(), 42u);

  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, read_only->get(), 0), MAP_FAILED);
  EXPECT_EQ(errno, EACCES);
  EXPECT_EQ(::pwrite(read_only->get(), "x", 1, 0), -1);
  EXPECT_EQ(::ftruncate(fd->get(), 0), -1) << "sealed against shrinking, for the writer too";
  EXPECT_EQ(::fcntl(fd->get(), F_ADD_SEALS, F_SEAL_WRITE), -1) << "sealed against further seals";
}

TEST(StatePageTest, InvalidStatePageIsRejected) {
  const absl::StatusOr<UniqueFd> small = CreateMemfd("x", 64);
  EXPECT_EQ(StatePage::MapReadOnly(small->get()).status().code(), absl::StatusCode::kInvalidArgument);
  const absl::StatusOr<UniqueFd> zeroes = CreateMemfd("x", sizeof(StatePageLayout));
  EXPECT_EQ(StatePage::MapReadOnly(zeroes->get()).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace berth
