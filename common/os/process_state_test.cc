#include "common/os/process_state.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/os/testing/lone_thread.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

TEST(ProcessStateTest, StateFollowsSignals) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_NAME, "T) T (", 0, 0, 0);
    while (true) ::pause();
  }
  EXPECT_FALSE(IsStopped(child));
  EXPECT_NE(ReadState(child), 0);
  ASSERT_EQ(::kill(child, SIGSTOP), 0);
  siginfo_t info = {};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WSTOPPED), 0);
  EXPECT_TRUE(IsStopped(child));
  EXPECT_EQ(ReadState(child), 'T');
  ASSERT_EQ(::kill(child, SIGCONT), 0);
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WCONTINUED), 0);
  EXPECT_FALSE(IsStopped(child));
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(IsStopped(child));
}

TEST(ProcessStateTest, OtherThreadShowsStateWithoutMainThread) {
  const pid_t child = StartLoneThread();
  EXPECT_FALSE(IsStopped(child));
  ASSERT_EQ(::kill(child, SIGSTOP), 0);
  siginfo_t info = {};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WSTOPPED), 0);
  EXPECT_TRUE(IsStopped(child));
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
}

TEST(ProcessStateTest, NoProcessIsNotStopped) {
  for (const int32_t pid : {0, -1, INT32_MIN, INT32_MAX}) {
    EXPECT_FALSE(IsStopped(pid));
    EXPECT_EQ(ReadState(pid), 0);
  }
}

}  // namespace
}  // namespace berth
