#include "daemon/service/attach/fds_in_flight.h"

#include <sched.h>
#include <sys/socket.h>

#include <cstddef>
#include <span>
#include <utility>

#include <berth/error.h>

#include "absl/status/status.h"
#include "common/os/fd_passing.h"
#include "common/os/unique_fd.h"
#include "gtest/gtest.h"

namespace berth::service {
namespace {

constexpr uint32_t kUser = 1000;

class FdsInFlightTest : public testing::Test {
 protected:
  // Sends an fd after counting it, as the server does.
  absl::Status Send() {
    const int socket = sockets_.first.get();
    if (absl::Status counted = in_flight_.Add(kUser, socket); !counted.ok()) return counted;
    return SendMessage(socket, std::as_bytes(std::span("hello")), {&socket, 1});
  }
  // Until the pause after the last sweep is over.
  void SendOnceAllowed() {
    while (!Send().ok()) ::sched_yield();
  }
  void Receive() { EXPECT_EQ(ReceiveMessage(sockets_.second.get())->fds.size(), 1u); }

  std::pair<UniqueFd, UniqueFd> sockets_ = *SocketPair();
  // One user alone may have two.
  FdsInFlight in_flight_{4};
};

TEST_F(FdsInFlightTest, OnlyReceivedFdsAreNotCounted) {
  EXPECT_TRUE(Send().ok());
  EXPECT_TRUE(Send().ok());
  for (int i = 0; i < 3; ++i) {
    const absl::Status refused = Send();
    EXPECT_TRUE(IsRefusal(refused, Reason::kLimit)) << refused;
    EXPECT_EQ(refused.message(), "fds sent to processes and not received of uid 1000: 2, limit 2");
    Receive();
    SendOnceAllowed();
  }
  EXPECT_TRUE(in_flight_.Add(kUser + 1, sockets_.second.get()).ok()) << "another user's share";
}

TEST_F(FdsInFlightTest, SocketStaysUntilPeerReceivedOrClosed) {
  const int socket = sockets_.first.get();
  EXPECT_TRUE(in_flight_.Forget(kUser, socket)) << "nothing was sent";
  EXPECT_TRUE(Send().ok());
  EXPECT_TRUE(Send().ok());
  EXPECT_EQ(::shutdown(socket, SHUT_RDWR), 0);
  EXPECT_FALSE(in_flight_.Forget(kUser, socket));
  Receive();
  EXPECT_FALSE(in_flight_.Forget(kUser, socket));
  sockets_.second.reset();
  EXPECT_TRUE(in_flight_.Forget(kUser, socket));
  sockets_ = *SocketPair();
  EXPECT_TRUE(Send().ok());
  EXPECT_TRUE(Send().ok()) << "every place is back";
}

TEST_F(FdsInFlightTest, LaterBrokerCountsWhatIsInFlight) {
  EXPECT_TRUE(Send().ok());
  EXPECT_TRUE(Send().ok());
  FdsInFlight later(4);
  later.Adopt(kUser, sockets_.first.get());
  EXPECT_TRUE(IsRefusal(later.Add(kUser, sockets_.first.get()), Reason::kLimit));
  EXPECT_FALSE(later.Forget(kUser, sockets_.first.get()));
  later.Drop(kUser, sockets_.first.get());
  EXPECT_TRUE(later.Forget(kUser, sockets_.first.get()));
}

}  // namespace
}  // namespace berth::service
