#include "daemon/vault/starter.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>

#include "common/fd_passing.h"
#include "daemon/vault/child_process.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

// What is started is this program again, as a vault: it ends when it is sent anything.
const bool kIsVault = [] {
  std::ifstream file("/proc/self/cmdline");
  const std::string line((std::istreambuf_iterator<char>(file)), {});
  if (line.find("--role=vault") == std::string::npos) return false;
  char byte;
  ::_exit(::recv(kChildFd, &byte, 1, 0) == 1 ? 0 : 1);
}();

TEST(StarterTest, StartsWhatItWasToldToAndHandsBackTheSocket) {
  ::signal(SIGCHLD, SIG_IGN);
  auto starter = Starter::Fork({"--there-is-no-such-flag"});
  ASSERT_TRUE(starter.ok()) << starter.status();
  for (int i = 0; i < 2; ++i) {
    ASSERT_FALSE(kIsVault);
    const auto socket = starter->StartVault();
    ASSERT_TRUE(socket.ok()) << socket.status();
    EXPECT_EQ(::send(socket->get(), "e", 1, MSG_NOSIGNAL), 1);
    pollfd entry = {.fd = socket->get(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&entry, 1, 30'000), 1);
    EXPECT_TRUE(IsEndOfStream(ReceiveMessage(socket->get()).status())) << "its end goes with it";
  }
}

TEST(StarterTest, OneThatIsGoneIsToldAndStartsNothing) {
  ::signal(SIGCHLD, SIG_IGN);
  auto starter = Starter::Fork({});
  ASSERT_TRUE(starter.ok()) << starter.status();
  pollfd entry = {.fd = starter->fd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&entry, 1, 0), 0) << "it lives";
  ASSERT_EQ(::kill(starter->pid(), SIGKILL), 0);
  EXPECT_EQ(::poll(&entry, 1, 30'000), 1);
  EXPECT_FALSE(starter->StartVault().ok());
}

}  // namespace
}  // namespace berth
