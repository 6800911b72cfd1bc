#include "common/os/process_start.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <optional>

#include "common/os/process.h"
#include "common/os/testing/free_fds.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

TEST(ProcessStartTest, OwnStartTimeOpensOwnProcess) {
  const std::optional<uint64_t> ticks = *StartTicksOf(::getpid());
  ASSERT_TRUE(ticks.has_value());
  const absl::StatusOr<UniqueFd> pidfd = OpenProcessStartedAt(::getpid(), *ticks);
  ASSERT_TRUE(pidfd.ok()) << pidfd.status();
  EXPECT_EQ(PidOfPidfd(pidfd->get()), ::getpid());
}

TEST(ProcessStartTest, OtherStartTimeIsOtherProcess) {
  const std::optional<uint64_t> ticks = *StartTicksOf(::getpid());
  ASSERT_TRUE(ticks.has_value());
  EXPECT_EQ(OpenProcessStartedAt(::getpid(), *ticks - 1).status().code(), absl::StatusCode::kNotFound);
}

TEST(ProcessStartTest, EndedProcessIsNotFound) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::pause());
  const std::optional<uint64_t> ticks = *StartTicksOf(child);
  ASSERT_TRUE(ticks.has_value());
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  // A zombie has released its resources, too.
  siginfo_t info = {};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(OpenProcessStartedAt(child, *ticks).status().code(), absl::StatusCode::kNotFound);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(OpenProcessStartedAt(child, *ticks).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(StartTicksOf(child)->has_value());
}

TEST(ProcessStartTest, NameWithParenthesesAndSpacesIsSkipped) {
  const std::optional<uint64_t> before = *StartTicksOf(::getpid());
  ASSERT_EQ(::prctl(PR_SET_NAME, ") 1 2) 3", 0, 0, 0), 0);
  EXPECT_EQ(*StartTicksOf(::getpid()), before);
}

TEST(ProcessStartTest, FdShortageIsNoAnswerAboutProcess) {
  const uint64_t ticks = **StartTicksOf(::getpid());
  const FreeFds none(0);
  EXPECT_TRUE(absl::IsResourceExhausted(StartTicksOf(::getpid()).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(OpenProcessStartedAt(::getpid(), ticks).status()));
}

TEST(ProcessStartTest, InvalidPidsAreRejected) {
  EXPECT_FALSE(StartTicksOf(0)->has_value());
  EXPECT_FALSE(StartTicksOf(-1)->has_value());
  EXPECT_EQ(OpenProcessStartedAt(0, 1).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(OpenProcessStartedAt(-1, 1).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace berth
