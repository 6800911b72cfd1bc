#include "common/os/fd_passing.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <tuple>

#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

std::span<const std::byte> AsBytes(absl::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

int OpenFds() {
  int count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += ::fcntl(fd, F_GETFD) >= 0;
  return count;
}

class FdPassingTest : public testing::Test {
 protected:
  void SetUp() override { std::tie(left_, right_) = *SocketPair(); }
  UniqueFd left_;
  UniqueFd right_;
};

TEST_F(FdPassingTest, PeekedMessageStaysReadable) {
  const int fd = STDIN_FILENO;
  ASSERT_TRUE(SendMessage(left_.get(), AsBytes("first"), {&fd, 1}).ok());
  ASSERT_TRUE(SendMessage(left_.get(), AsBytes("second")).ok());
  const int open = OpenFds();
  for (int i = 0; i < 2; ++i) {
    const absl::StatusOr<Message> peeked = PeekMessage(right_.get());
    ASSERT_TRUE(peeked.ok()) << peeked.status();
    EXPECT_EQ(peeked->bytes, "first");
    EXPECT_TRUE(peeked->fds_lost) << "there are some";
  }
  EXPECT_EQ(OpenFds(), open);
  const absl::StatusOr<Message> message = ReceiveMessage(right_.get());
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->fds.size(), 1u);
  EXPECT_FALSE(PeekMessage(right_.get())->fds_lost);
  EXPECT_EQ(ReceiveMessage(right_.get())->bytes, "second");
  left_.reset();
  EXPECT_TRUE(IsEndOfStream(PeekMessage(right_.get()).status()));
}

TEST_F(FdPassingTest, MessageCarriesBytesAndFds) {
  int pipe_fds[2];
  ASSERT_EQ(::pipe2(pipe_fds, O_CLOEXEC), 0);
  const UniqueFd read_end(pipe_fds[0]);
  const UniqueFd write_end(pipe_fds[1]);
  const int fd = write_end.get();
  ASSERT_TRUE(SendMessage(left_.get(), AsBytes("hello"), {&fd, 1}).ok());
  absl::StatusOr<Message> message = ReceiveMessage(right_.get());
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->bytes, "hello");
  ASSERT_EQ(message->fds.size(), 1u);
  EXPECT_NE(::fcntl(message->fds[0].get(), F_GETFD) & FD_CLOEXEC, 0);
  ASSERT_EQ(::write(message->fds[0].get(), "x", 1), 1);
  char byte;
  EXPECT_EQ(::read(read_end.get(), &byte, 1), 1);
}

TEST_F(FdPassingTest, EmptySocketDiffersFromClosedPeer) {
  ASSERT_EQ(::fcntl(right_.get(), F_SETFL, O_NONBLOCK), 0);
  EXPECT_TRUE(IsWouldBlock(ReceiveMessage(right_.get()).status()));
  left_.reset();
  EXPECT_TRUE(IsEndOfStream(ReceiveMessage(right_.get()).status()));
}

TEST_F(FdPassingTest, OversizedMessageIsLostWithItsFds) {
  const int before = OpenFds();
  const int fd = left_.get();
  const std::string big(kMaxMessageBytes + 1, 'x');
  ASSERT_TRUE(SendMessage(left_.get(), AsBytes(big), {&fd, 1}).ok());
  EXPECT_EQ(ReceiveMessage(right_.get()).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(OpenFds(), before);
  // The next message is complete again.
  ASSERT_TRUE(SendMessage(left_.get(), AsBytes("next")).ok());
  EXPECT_EQ(ReceiveMessage(right_.get())->bytes, "next");
}

TEST_F(FdPassingTest, ErrorWithoutFreeFdNamesLimit) {
  const int fd = left_.get();
  ASSERT_TRUE(SendMessage(left_.get(), AsBytes("hello"), {&fd, 1}).ok());
  rlimit old_limit;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old_limit), 0);
  const rlimit none = {.rlim_cur = 0, .rlim_max = old_limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status status = ReceiveMessage(right_.get()).status();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old_limit), 0);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("RLIMIT_NOFILE is 0: ulimit -n raises it"));
}

TEST_F(FdPassingTest, BytesArriveAloneWithoutFreeFd) {
  const int fd = left_.get();
  ASSERT_TRUE(SendMessage(left_.get(), AsBytes("hello"), {&fd, 1}).ok());
  rlimit old_limit;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old_limit), 0);
  const rlimit none = {.rlim_cur = 0, .rlim_max = old_limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::StatusOr<Message> message = ReceiveMessageOrItsBytes(right_.get());
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old_limit), 0);
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->bytes, "hello");
  EXPECT_TRUE(message->fds_lost);
  EXPECT_TRUE(message->fds.empty());
}

TEST_F(FdPassingTest, FdsOfInvalidMessageBelongToCaller) {
  const std::vector<int> passed(kMaxMessageFds, left_.get());
  ASSERT_TRUE(SendMessage(left_.get(), AsBytes(std::string(kMaxMessageBytes + 1, 'x')), passed).ok());
  std::vector<UniqueFd> fds;
  EXPECT_EQ(ReceiveFromStranger(right_.get(), &fds).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(fds.size(), kMaxMessageFds);
  ASSERT_TRUE(SendMessage(left_.get(), AsBytes("right"), passed).ok());
  const absl::StatusOr<Message> message = ReceiveFromStranger(right_.get(), &fds);
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->bytes, "right");
  EXPECT_TRUE(message->fds.empty());
  EXPECT_EQ(fds.size(), 2 * kMaxMessageFds);
}

TEST_F(FdPassingTest, SocketRefusingFdsTakesBytesAndSendsBoth) {
  const absl::Status refuses = RefuseFds(right_.get());
  if (absl::IsUnimplemented(refuses)) GTEST_SKIP() << refuses;
  ASSERT_TRUE(refuses.ok()) << refuses;
  const int fd = left_.get();
  EXPECT_TRUE(absl::IsPermissionDenied(SendMessage(left_.get(), AsBytes("with"), {&fd, 1})));
  ASSERT_TRUE(SendMessage(left_.get(), AsBytes("without")).ok());
  EXPECT_EQ(ReceiveMessage(right_.get())->bytes, "without");
  ASSERT_TRUE(SendMessage(right_.get(), AsBytes("back"), {&fd, 1}).ok());
  EXPECT_EQ(ReceiveMessage(left_.get())->fds.size(), 1u);
}

TEST_F(FdPassingTest, MessageIsReadFromPeerThatClosedWithUnreadOnes) {
  std::string bytes(10, '\0');
  const auto receive = [&](int socket, int flags) {
    const ssize_t got = ReceiveBytes(socket, bytes, flags);
    return got < 0 ? absl::ErrnoToStatus(errno, "recv") : absl::StatusOr<std::string>(bytes.substr(0, size_t(got)));
  };
  const auto bytes_of = [](const absl::StatusOr<Message>& message) {
    return message.ok() ? absl::StatusOr<std::string>(message->bytes) : message.status();
  };
  const std::function<absl::StatusOr<std::string>(int)> all[] = {
      [&](int socket) { return receive(socket, 0); },
      [&](int socket) { return receive(socket, MSG_PEEK); },
      [&](int socket) { return bytes_of(ReceiveMessage(socket)); },
      [&](int socket) { return bytes_of(PeekMessage(socket)); },
  };
  for (const auto& read : all) {
    std::tie(left_, right_) = *SocketPair();
    ASSERT_TRUE(SendMessage(left_.get(), AsBytes("question")).ok());
    ASSERT_TRUE(SendMessage(right_.get(), AsBytes("answer")).ok());
    right_.reset();
    const absl::StatusOr<std::string> got = read(left_.get());
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(*got, "answer");
  }
}

TEST_F(FdPassingTest, SendingToClosedPeerFailsWithoutSignal) {
  right_.reset();
  EXPECT_EQ(SendMessage(left_.get(), AsBytes("hello")).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace berth
