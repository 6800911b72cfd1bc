#include "daemon/service/transport/read_gate.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/os/unique_fd.h"
#include "gtest/gtest.h"

namespace berth::service {
namespace {

constexpr absl::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr absl::string_view kReset("\0\0\4\3\0\0\0\0\1\0\0\0\x8", 13);
constexpr absl::string_view kData("\0\0\5\0\0\0\0\0\1\0\0\0\0\0", 14);

// A connection whose reader calls the kernel as gRPC does.
class ReadGateTest : public testing::Test {
 protected:
  void SetUp() override {
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    server_ = UniqueFd(fds[0]);
    client_ = UniqueFd(fds[1]);
  }

  void Send(absl::string_view bytes) {
    ASSERT_EQ(::send(client_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  // Reads into two buffers, as gRPC does.
  ssize_t Read(std::string* bytes = nullptr) {
    char first[7];
    char rest[4096];
    iovec parts[] = {{first, sizeof(first)}, {rest, sizeof(rest)}};
    msghdr message = {};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    const ssize_t size = ::recvmsg(server_.get(), &message, 0);
    if (bytes != nullptr && size > 0) {
      *bytes = std::string(first, sizeof(first)) + std::string(rest, sizeof(rest));
      bytes->resize(static_cast<size_t>(size));
    }
    return size;
  }

  UniqueFd server_;
  UniqueFd client_;
  std::vector<FrameCost> charged_;
};

TEST_F(ReadGateTest, BytesAreReadUnchangedAndChargedInParts) {
  ReadGate gate([this](int fd, const FrameCost& cost) {
    EXPECT_EQ(fd, server_.get());
    charged_.push_back(cost);
    return true;
  });
  gate.Watch(server_.get());
  Send(kPreface);
  std::string bytes;
  EXPECT_EQ(Read(&bytes), static_cast<ssize_t>(kPreface.size()));
  EXPECT_EQ(bytes, kPreface);
  EXPECT_TRUE(charged_.empty());
  for (uint64_t i = 0; i < 64 * FrameCost::kCall; ++i) {
    Send(kData);
    EXPECT_EQ(Read(), static_cast<ssize_t>(kData.size()));
  }
  ASSERT_EQ(charged_.size(), 1u);
  EXPECT_GE(charged_[0].load, 64 * FrameCost::kCall);
  EXPECT_EQ(charged_[0].resets, 0u);
  EXPECT_LT(Read(), 0) << "nothing is there";
}

TEST_F(ReadGateTest, ConnectionAboveRateEndsForBothSides) {
  ReadGate gate([this](int, const FrameCost& cost) {
    charged_.push_back(cost);
    return false;
  });
  gate.Watch(server_.get());
  Send(kPreface);
  EXPECT_GT(Read(), 0);
  for (int i = 0; i < 16; ++i) Send(kReset);
  EXPECT_EQ(Read(), 0) << "what cost too much is not handed on";
  EXPECT_EQ(charged_, (std::vector<FrameCost>{{.load = 16 * FrameCost::kFrame, .resets = 16}}));
  char byte;
  EXPECT_EQ(::recv(client_.get(), &byte, 1, 0), 0);
  EXPECT_LT(::send(client_.get(), "x", 1, MSG_NOSIGNAL), 0);
  EXPECT_EQ(Read(), 0);
}

TEST_F(ReadGateTest, ForeignSocketsAreReadUnmetered) {
  ReadGate gate([](int, const FrameCost&) { return false; });
  Send(kPreface);
  for (int i = 0; i < 100; ++i) Send(kReset);
  EXPECT_GT(Read(), 1'000);
}

TEST_F(ReadGateTest, ReusedFdNumberStartsFresh) {
  bool may_go_on = false;
  ReadGate gate([&](int, const FrameCost&) { return may_go_on; });
  gate.Watch(server_.get());
  Send(kPreface);
  for (int i = 0; i < 16; ++i) Send(kReset);
  EXPECT_EQ(Read(), 0);
  const int number = server_.get();
  server_.reset();
  SetUp();
  ASSERT_EQ(server_.get(), number);
  gate.Watch(number);
  may_go_on = true;
  Send(kPreface);
  EXPECT_EQ(Read(), static_cast<ssize_t>(kPreface.size()));
}

}  // namespace
}  // namespace berth::service
