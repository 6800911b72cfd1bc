#include "daemon/service/transport/peer.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include <berth/error.h>

#include "common/os/fd_passing.h"
#include "common/os/testing/free_fds.h"
#include "gtest/gtest.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace {
// Errno that SO_PEERPIDFD returns; 0 for the kernel's own result.
int peer_pidfd_error = 0;
}  // namespace

// Replaces the C library's function.
extern "C" int getsockopt(int socket, int level, int name, void* value, socklen_t* size) noexcept {
  if (level == SOL_SOCKET && name == SO_PEERPIDFD && peer_pidfd_error != 0) {
    errno = peer_pidfd_error;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_getsockopt, socket, level, name, value, size));
}

namespace berth::service {
namespace {

class PeerTest : public ::testing::Test {
 protected:
  PeerTest() : sockets_(*SocketPair()) {}
  ~PeerTest() override { peer_pidfd_error = 0; }

  std::pair<UniqueFd, UniqueFd> sockets_;
};

TEST_F(PeerTest, ProcessOutsideContainerIsTenant) {
  const absl::StatusOr<Peer> peer = IdentifyPeer(sockets_.first.get(), Peer::Role::kTenant);
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ(peer->process.pid, ::getpid());
  EXPECT_EQ(peer->process.name, "peer_test");
  EXPECT_EQ(peer->tenant, core::Tenant{.uid = ::geteuid()});
  EXPECT_FALSE(peer->tenant.charged_account.has_value());
  EXPECT_EQ(UserOf(*peer), ::geteuid());
}

// Otherwise data read by the pid may belong to a process that reused it.
TEST_F(PeerTest, PeerWithoutPidfdIsRejectedOnAnyError) {
  const struct {
    int error;
    const char* what;
  } rows[] = {
      {ESRCH, "reaped, as Linux 6.15 says it"},
      {EINVAL, "reaped, as Linux 6.5 to 6.14 say it"},
      {ENODATA, "no peer"},
      {EPERM, "forbidden"},
      {EACCES, "forbidden by a security module"},
      {ENOTCONN, "not connected"},
      {EIO, "any other"},
  };
  for (const Peer::Role role : {Peer::Role::kTenant, Peer::Role::kObserver, Peer::Role::kAdmin}) {
    for (const auto& row : rows) {
      peer_pidfd_error = row.error;
      const absl::Status refused = IdentifyPeer(sockets_.first.get(), role).status();
      EXPECT_TRUE(IsRefusal(refused, Reason::kUnknownPeer)) << row.what << ": " << refused;
    }
  }
}

// A wrongly identified tenant has no session: a client that retries would get the error that its session ended.
TEST_F(PeerTest, FdOrMemoryShortageNamesNoOtherTenant) {
  for (const int error : {EMFILE, ENFILE, ENOMEM}) {
    peer_pidfd_error = error;
    const absl::Status refused = IdentifyPeer(sockets_.first.get(), Peer::Role::kTenant).status();
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    EXPECT_FALSE(IsRefusal(refused, Reason::kUnknownPeer)) << refused;
  }
  peer_pidfd_error = 0;
  for (rlim_t count = 0; count < 6; ++count) {
    SCOPED_TRACE(count);
    const FreeFds few(count);
    const absl::StatusOr<Peer> peer = IdentifyPeer(sockets_.first.get(), Peer::Role::kTenant);
    if (!peer.ok()) {
      EXPECT_TRUE(absl::IsResourceExhausted(peer.status())) << peer.status();
      EXPECT_LT(count, 3u);
      continue;
    }
    EXPECT_EQ(peer->tenant, core::Tenant{.uid = ::geteuid()});
    EXPECT_FALSE(peer->tenant.charged_account.has_value());
  }
}

TEST_F(PeerTest, KernelWithoutPeerPidfdUsesConnectedPeersPid) {
  peer_pidfd_error = ENOPROTOOPT;
  const absl::StatusOr<Peer> peer = IdentifyPeer(sockets_.first.get(), Peer::Role::kTenant);
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ(peer->process.pid, ::getpid());
  sockets_.second.reset();
  const absl::Status refused = IdentifyPeer(sockets_.first.get(), Peer::Role::kTenant).status();
  EXPECT_TRUE(IsRefusal(refused, Reason::kUnknownPeer)) << refused;
}

}  // namespace
}  // namespace berth::service
