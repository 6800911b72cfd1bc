#include "daemon/supervisor/processes/launcher.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>

#include "common/os/fd_passing.h"
#include "daemon/supervisor/processes/child_process.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

// The started program is this one again, in the supervisor's role: it ends on any message.
const bool kIsSupervisor = [] {
  std::ifstream file("/proc/self/cmdline");
  const std::string line((std::istreambuf_iterator<char>(file)), {});
  if (line.find("--role=vault") == std::string::npos) return false;
  char byte;
  ::_exit(::recv(kChildFd, &byte, 1, 0) == 1 ? 0 : 1);
}();

TEST(LauncherTest, LauncherStartsProgramAndReturnsItsSocket) {
  ::signal(SIGCHLD, SIG_IGN);
  auto launcher = Launcher::Fork({"--there-is-no-such-flag"});
  ASSERT_TRUE(launcher.ok()) << launcher.status();
  for (int i = 0; i < 2; ++i) {
    ASSERT_FALSE(kIsSupervisor);
    const auto socket = launcher->StartSupervisor();
    ASSERT_TRUE(socket.ok()) << socket.status();
    EXPECT_EQ(::send(socket->get(), "e", 1, MSG_NOSIGNAL), 1);
    pollfd entry = {.fd = socket->get(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&entry, 1, 30'000), 1);
    EXPECT_TRUE(IsEndOfStream(ReceiveMessage(socket->get()).status())) << "its end goes with it";
  }
}

TEST(LauncherTest, DeadLauncherIsNoticedAndStartsNothing) {
  ::signal(SIGCHLD, SIG_IGN);
  auto launcher = Launcher::Fork({});
  ASSERT_TRUE(launcher.ok()) << launcher.status();
  pollfd entry = {.fd = launcher->fd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&entry, 1, 0), 0) << "it lives";
  ASSERT_EQ(::kill(launcher->pid(), SIGKILL), 0);
  EXPECT_EQ(::poll(&entry, 1, 30'000), 1);
  EXPECT_FALSE(launcher->StartSupervisor().ok());
}

}  // namespace
}  // namespace berth
