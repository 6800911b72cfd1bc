#include "common/os/proc_file.h"

#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "common/os/testing/free_fds.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

TEST(ProcFileTest, FileIsReadAndMissingFileIsEmpty) {
  EXPECT_TRUE(absl::StartsWith(*ReadProcFile("/proc/self/status"), "Name:"));
  EXPECT_EQ(*ReadProcFile("/proc/self/no-such-file"), "");
  EXPECT_EQ(*ReadProcFile("/proc/0/status"), "");
  EXPECT_EQ(*ReadProcFile("/proc"), "") << "a folder";
}

TEST(ProcFileTest, MissingFreeFdIsAnError) {
  std::optional<FreeFds> none(0);
  const absl::StatusOr<std::string> shown = ReadProcFile("/proc/self/status");
  const absl::StatusOr<std::string> hidden = ReadProcFile("/proc/self/no-such-file");
  none.reset();
  EXPECT_TRUE(absl::IsResourceExhausted(shown.status())) << shown.status();
  EXPECT_TRUE(absl::IsResourceExhausted(hidden.status())) << hidden.status();
}

}  // namespace
}  // namespace berth
