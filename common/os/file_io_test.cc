#include "common/os/file_io.h"

#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "absl/strings/match.h"
#include "common/os/memfd.h"
#include "common/os/unique_fd.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

TEST(FileIoTest, ContentsOfAnySizeAreReadWhole) {
  for (const size_t size : {0u, 1u, 4095u, 4096u, 4097u, 100'000u}) {
    const std::string text(size, 'x');
    absl::StatusOr<UniqueFd> file = CreateMemfd("berth-test", size);
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE(WriteAll(file->get(), text, "it").ok());
    ASSERT_EQ(::lseek(file->get(), 0, SEEK_SET), 0);
    const absl::StatusOr<std::string> read = ReadToEnd(file->get(), "it");
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, text) << size;
  }
}

TEST(FileIoTest, ErrorNamesFile) {
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  const absl::Status written = WriteAll(full.get(), "text", "settings");
  EXPECT_TRUE(absl::IsResourceExhausted(written)) << written;
  EXPECT_TRUE(absl::StrContains(written.message(), "write settings")) << written;
  const absl::Status read = ReadToEnd(full.get(), "settings").status();
  EXPECT_TRUE(absl::StrContains(read.message(), "read settings")) << read;
}

}  // namespace
}  // namespace berth
