// Tests SendMessage() while the kernel lacks memory for a message. Interposes the C library's sendmsg.

#include <dlfcn.h>
#include <errno.h>
#include <sys/socket.h>

#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/os/fd_passing.h"
#include "common/os/unique_fd.h"
#include "gtest/gtest.h"

namespace {

// Number of calls that still fail, their errno, and the number of calls so far.
int g_failing = 0;
int g_error = 0;
int g_calls = 0;

}  // namespace

extern "C" ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  static auto* const next = reinterpret_cast<ssize_t (*)(int, const msghdr*, int)>(::dlsym(RTLD_NEXT, "sendmsg"));
  ++g_calls;
  if (g_failing > 0) {
    --g_failing;
    errno = g_error;
    return -1;
  }
  return next(fd, message, flags);
}

namespace berth {
namespace {

absl::Status SendAfter(int failing, int error, std::pair<UniqueFd, UniqueFd>& sockets) {
  g_failing = failing;
  g_error = error;
  g_calls = 0;
  const absl::string_view text = "a message";
  return SendMessage(sockets.first.get(), std::as_bytes(std::span(text.data(), text.size())));
}

TEST(SendAgainTest, MessageIsResentOnceAfterMemoryShortage) {
  auto sockets = *SocketPair();
  ASSERT_TRUE(SetNonBlocking(sockets.second.get()).ok());
  for (const int error : {ENOBUFS, ENOMEM}) {
    EXPECT_TRUE(SendAfter(3, error, sockets).ok());
    EXPECT_EQ(g_calls, 4);
    const absl::StatusOr<Message> received = ReceiveMessage(sockets.second.get());
    ASSERT_TRUE(received.ok()) << received.status();
    EXPECT_EQ(received->bytes, "a message");
    EXPECT_TRUE(IsWouldBlock(ReceiveMessage(sockets.second.get()).status()));
  }
}

TEST(SendAgainTest, EndlessMemoryShortageEndsRetries) {
  auto sockets = *SocketPair();
  EXPECT_EQ(SendAfter(1'000, ENOBUFS, sockets).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(g_calls, 6);
  EXPECT_TRUE(SendAfter(0, 0, sockets).ok()) << "the socket is as good as it was";
}

TEST(SendAgainTest, OtherErrorsAreReturnedAtOnce) {
  auto sockets = *SocketPair();
  EXPECT_TRUE(IsWouldBlock(SendAfter(1, EAGAIN, sockets)));
  EXPECT_EQ(g_calls, 1);
  EXPECT_TRUE(SendAfter(1, EINTR, sockets).ok());
  EXPECT_EQ(g_calls, 2);
}

}  // namespace
}  // namespace berth
