#include "client/cli/exit_status.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace berth::cli {
namespace {

TEST(ExitStatusTest, EachErrorKindHasItsExitCode) {
  EXPECT_EQ(Report(absl::OkStatus()).code, 0);
  EXPECT_EQ(Report(absl::UnavailableError("no daemon answers")).code, 69);
  EXPECT_EQ(Report(absl::DeadlineExceededError("no daemon answers in time")).code, 69);
  EXPECT_EQ(Report(absl::PermissionDeniedError("not yours")).code, 69);
  EXPECT_EQ(Report(absl::UnauthenticatedError("who are you")).code, 69);
  EXPECT_EQ(Report(absl::NotFoundError("no such thing")).code, 1);
  for (const int error : {EACCES, EPERM, EAGAIN, ENOENT, EIO}) EXPECT_EQ(Report(LocalError("a file", error)).code, 1);
  EXPECT_EQ(Report(LocalError("a file", EMFILE)).code, 125) << "this process lacks a resource";
}

TEST(ExitStatusDeathTest, CommandsDeathSignalIsPassedUp) {
  EXPECT_EQ(Exit({.code = 7}), 7);
  EXPECT_EXIT(Exit({.code = 128 + SIGTERM, .signal = SIGTERM}), testing::KilledBySignal(SIGTERM), "");
}

TEST(ExitStatusDeathTest, FailedPrintIsNoSuccess) {
  const auto print_into_the_void = [](int code) {
    if (::freopen("/dev/full", "w", stdout) == nullptr) ::_exit(99);
    ::fputs("a table", stdout);
    ::_exit(Exit({.code = code}));
  };
  EXPECT_EXIT(print_into_the_void(0), testing::ExitedWithCode(1), "standard output: No space left");
  EXPECT_EXIT(print_into_the_void(42), testing::ExitedWithCode(42), "");
}

}  // namespace
}  // namespace berth::cli
