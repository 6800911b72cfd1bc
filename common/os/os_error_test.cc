#include "common/os/os_error.h"

#include <errno.h>
#include <sys/resource.h>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

TEST(OsErrorTest, ExceededLimitIsNamed) {
  struct Row {
    int error;
    __rlimit_resource resource;
    const char* limit;
    const char* way_out;
  };
  for (const Row& row : {Row{EMFILE, RLIMIT_NOFILE, "RLIMIT_NOFILE", "ulimit -n"},
                         Row{ENOMEM, RLIMIT_AS, "RLIMIT_AS", "ulimit -v"},
                         Row{ENOMEM, RLIMIT_DATA, "RLIMIT_DATA", "ulimit -d"},
                         Row{EFBIG, RLIMIT_FSIZE, "RLIMIT_FSIZE", "ulimit -f"}}) {
    rlimit before = {};
    ASSERT_EQ(::getrlimit(row.resource, &before), 0);
    // More than the test uses.
    const rlimit limit = {.rlim_cur = row.error == EMFILE ? 512 : rlim_t{1} << 45, .rlim_max = before.rlim_max};
    ASSERT_EQ(::setrlimit(row.resource, &limit), 0);
    const absl::Status status = OsError("a call", row.error);
    ASSERT_EQ(::setrlimit(row.resource, &before), 0);
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), row.limit)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), row.way_out)) << status;
  }
}

TEST(OsErrorTest, ShortageWithoutLimitIsExhaustion) {
  for (const int error : {EDQUOT, ENFILE, ENOSPC}) {
    const absl::Status status = OsError("a call", error);
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_FALSE(absl::StrContains(status.message(), "RLIMIT")) << status;
  }
}

}  // namespace
}  // namespace berth
