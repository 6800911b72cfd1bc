#include "daemon/base/process_origin.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "gtest/gtest.h"

namespace berth {
namespace {

TEST(ProcessOriginTest, OriginNamesProgramAndStart) {
  const ProcessOrigin self = ReadOrigin(::getpid());
  EXPECT_EQ(self.executable, std::filesystem::read_symlink("/proc/self/exe").string());
  EXPECT_GT(self.started, 0u);
  EXPECT_EQ(ReadOrigin(::getpid()).started, self.started);
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  EXPECT_GE(ReadOrigin(child).started, self.started);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST(ProcessOriginTest, OriginOfMissingProcessIsEmpty) {
  for (const int32_t pid : {-1, 0, INT32_MAX}) {
    const ProcessOrigin nobody = ReadOrigin(pid);
    EXPECT_EQ(nobody.started, 0u);
    EXPECT_TRUE(nobody.cgroup.empty() && nobody.executable.empty());
  }
}

}  // namespace
}  // namespace berth
