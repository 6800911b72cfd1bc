#include "daemon/broker/fd_closer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/notification.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

// Far longer than any of these tests takes, unless it waits for a close.
constexpr int kLingerSeconds = 300;

// A TCP connection over loopback. One end lingers with bytes that the other has not read: its close waits until the
// other end has read them.
struct LingeringPair {
  LingeringPair() {
    const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int small = 4096;
    ::setsockopt(listener.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    EXPECT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(listener.get(), 1), 0);
    socklen_t size = sizeof(address);
    ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size);
    lingering.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(lingering.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    reader.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const char bytes[65536] = {};
    while (::send(lingering.get(), bytes, sizeof(bytes), MSG_DONTWAIT) > 0) continue;
    EXPECT_EQ(errno, EAGAIN);
    const linger on = {.l_onoff = 1, .l_linger = kLingerSeconds};
    EXPECT_EQ(::setsockopt(lingering.get(), SOL_SOCKET, SO_LINGER, &on, sizeof(on)), 0);
  }

  // Reads until the other end is closed.
  void ReadAll() {
    char bytes[65536];
    while (::recv(reader.get(), bytes, sizeof(bytes), 0) > 0) continue;
  }

  UniqueFd lingering;
  UniqueFd reader;
};

struct Pipe {
  Pipe() {
    int fds[2];
    EXPECT_EQ(::pipe2(fds, O_CLOEXEC), 0);
    read.reset(fds[0]);
    write.reset(fds[1]);
  }
  UniqueFd read;
  UniqueFd write;
};

TEST(FdCloserTest, GivenFdsAreClosed) {
  FdCloser closer;
  for (int i = 0; i < 3; ++i) {
    Pipe pipe;
    closer.Close(std::move(pipe.write));
    char byte;
    EXPECT_EQ(::read(pipe.read.get(), &byte, 1), 0);
  }
}

TEST(FdCloserTest, LingeringCloseDoesNotDelayCaller) {
  const absl::Time begin = absl::Now();
  FdCloser closer;
  LingeringPair pair;
  closer.Close(std::move(pair.lingering));
  Pipe behind;
  closer.Close(std::move(behind.write));
  // Only now can the first close finish and the second begin.
  pair.ReadAll();
  char byte;
  EXPECT_EQ(::read(behind.read.get(), &byte, 1), 0);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(kLingerSeconds));
}

TEST(FdCloserTest, DestructionDoesNotWaitForLingeringClose) {
  const absl::Time begin = absl::Now();
  LingeringPair pair;
  auto closer = std::make_unique<FdCloser>();
  closer->Close(std::move(pair.lingering));
  closer.reset();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(kLingerSeconds));
  pair.ReadAll();
}

TEST(FdCloserTest, CallbackRunsAfterClose) {
  Pipe pipe;
  const int number = pipe.write.get();
  Notification notified;
  bool closed = false;
  FdCloser closer;
  closer.Close(std::move(pipe.write), [&] {
    closed = ::fcntl(number, F_GETFD) < 0 && errno == EBADF;
    notified.Notify();
  });
  ASSERT_TRUE(notified.WaitForNotificationWithTimeout(absl::Seconds(60)));
  EXPECT_TRUE(closed);
}

TEST(FdCloserTest, PendingCallbackIsDroppedAtDestruction) {
  LingeringPair pair;
  std::atomic<bool> notified = false;
  {
    FdCloser closer;
    closer.Close(std::move(pair.lingering), [&] { notified = true; });
  }
  pair.ReadAll();
  EXPECT_FALSE(notified);
}

}  // namespace
}  // namespace berth
