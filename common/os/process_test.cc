#include "common/os/process.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/os/fd_passing.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

// A listener and a client end, which a child connects; the child waits to be killed.
TEST(ProcessTest, PidfdOfPeerReportsItsDeath) {
  // With socketpair() both peers are this process; a child needs an address to connect to, here an abstract one.
  const UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr address = {};
  address.sa_family = AF_UNIX;
  ASSERT_EQ(::bind(listener.get(), &address, sizeof(sa_family_t)), 0) << "autobind";
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  sockaddr_storage bound = {};
  socklen_t size = sizeof(bound);
  ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&bound), &size), 0);

  const pid_t child = ::fork();
  if (child == 0) {
    const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (::connect(fd, reinterpret_cast<sockaddr*>(&bound), size) != 0) _exit(1);
    ::pause();
    _exit(0);
  }
  const UniqueFd socket(::accept(listener.get(), nullptr, nullptr));
  const absl::StatusOr<PeerCredentials> peer = GetPeerCredentials(socket.get());
  ASSERT_TRUE(peer.ok());
  EXPECT_EQ(peer->pid, child);
  EXPECT_EQ(peer->uid, ::geteuid());
  const absl::StatusOr<UniqueFd> pidfd = OpenPeerPidfd(socket.get(), *peer);
  ASSERT_TRUE(pidfd.ok()) << pidfd.status();
  EXPECT_EQ(PidOfPidfd(pidfd->get()), child);
  EXPECT_FALSE(IsGone(pidfd->get()));

  ::kill(child, SIGKILL);
  pollfd entry = {.fd = pidfd->get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&entry, 1, 10'000), 1);
  EXPECT_TRUE(IsGone(pidfd->get()));
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(PidOfPidfd(pidfd->get()), -1);
}

TEST(ProcessTest, OwnNameIsKnown) {
  EXPECT_EQ(ProcessName(::getpid()), std::string("process_test"));
}

TEST(ProcessTest, ProcessZeroHasNoName) {
  EXPECT_EQ(ProcessName(0), "");
}

}  // namespace
}  // namespace berth
