// Identity: sessions and their secrets, tenants by user and container, and peers that the kernel cannot name.

#include <errno.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <berth/error.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/admin.grpc.pb.h"
#include "berth/v1/device.grpc.pb.h"
#include "berth/v1/memory.grpc.pb.h"
#include "berth/v1/permit.grpc.pb.h"
#include "berth/v1/resources.pb.h"
#include "berth/v1/session.grpc.pb.h"
#include "common/wire/attach_wire.h"
#include "common/wire/session_credentials.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/peer_process.h"
#include "tests/support/testing.h"
#include "tests/support/wire/raw_client.h"

namespace berth::testing {
namespace {

constexpr uid_t kOther = 1001;

#define SKIP_UNLESS_ROOT() \
  if (!IsRoot()) GTEST_SKIP() << "needs root: changes users"
#define SKIP_UNLESS_UNSHARED(kinds) \
  if (!MayUnshare(kinds)) GTEST_SKIP() << "needs the right to make namespaces: " #kinds

attach::Join JoinOf(const SessionCredentials& session_credentials) {
  attach::Join join;
  join.session = session_credentials.session.value();
  join.secret = session_credentials.secret;
  return join;
}

TEST(IdentityTest, EachServiceExceptNodeNeedsSecret) {
  TestDaemon daemon;
  {
    RawClient client = RawClient::Open(daemon.folder());
    Credentials wrong_secret = client.credentials();
    wrong_secret.secret.bits[15] ^= 1;
    Credentials wrong_session = client.credentials();
    wrong_session.session = SessionId(wrong_session.session.value() ^ 1);
    const std::vector<std::optional<std::string>> bad = {std::nullopt,
                                                         "",
                                                         std::string(31, 'x'),
                                                         std::string(33, 'x'),
                                                         std::string(32, '\0'),
                                                         EncodeCredentials(wrong_secret),
                                                         EncodeCredentials(wrong_session)};
    v1::AcquirePermitRequest acquire;
    acquire.set_holder_key("k");
    v1::AllocateBlockRequest allocate;
    allocate.set_bytes(1);
    v1::SetPoolRequest cap;
    cap.set_cap(9);
    for (const std::optional<std::string>& metadata : bad) {
      *acquire.mutable_request() = client.NextTag();
      *allocate.mutable_request() = client.NextTag();
      const std::vector<absl::Status> refused = {
          client.CallAs(metadata, &v1::PermitService::Stub::AcquirePermit, acquire).status(),
          client.CallAs(metadata, &v1::PermitService::Stub::ListPermits, v1::ListPermitsRequest()).status(),
          client.CallAs(metadata, &v1::MemoryService::Stub::AllocateBlock, allocate).status(),
          client.CallAs(metadata, &v1::MemoryService::Stub::GetUsage, v1::GetUsageRequest()).status(),
          client.CallAs(metadata, &v1::SessionService::Stub::EndSession, v1::EndSessionRequest()).status(),
          client.CallAs(metadata, &v1::SessionService::Stub::ListSessions, v1::ListSessionsRequest())
              .status(),
          client.CallAs(metadata, &v1::DeviceService::Stub::ListDevices, v1::ListDevicesRequest()).status(),
          client.CallAs(metadata, &v1::AdminService::Stub::SetPool, cap).status(),
      };
      for (const absl::Status& status : refused) EXPECT_TRUE(Refused(status, Reason::kBadCredentials));
      EXPECT_TRUE(Ok(client.CallAs(metadata, &v1::NodeService::Stub::GetNode, v1::GetNodeRequest())));
    }
    EXPECT_TRUE(Ok(client.TryAcquire()));
  }
  daemon.ExpectAccountsBack();
}

TEST(IdentityTest, ForeignChannelIsRejected) {
  TestDaemon daemon;
  {
    RawClient client = RawClient::Open(daemon.folder());
    RawClient other = RawClient::Open(daemon.folder());
    client.credentials().channel = other.credentials().channel;
    EXPECT_TRUE(Refused(client.TryAcquire(), Reason::kNotJoined));
    client.credentials().channel = ChannelId();
    EXPECT_TRUE(Refused(client.TryAcquire(), Reason::kNotJoined));
  }
  daemon.ExpectAccountsBack();
}

TEST(IdentityTest, SessionSecretIsUselessToOtherUser) {
  SKIP_UNLESS_ROOT();
  TestDaemon daemon;
  {
    RawClient root = RawClient::Open(daemon.folder());
    RawClient other = RawClient::Open(daemon.folder(), "berthd.sock", kOther);
    EXPECT_TRUE(Ok(other.TryAcquire()));
    const Credentials own = other.credentials();
    other.credentials() = root.credentials();
    EXPECT_TRUE(Refused(other.TryAcquire(), Reason::kBadCredentials));
    EXPECT_TRUE(Refused(other.Call(&v1::SessionService::Stub::EndSession, v1::EndSessionRequest()),
                        Reason::kBadCredentials));
    other.credentials() = own;

    AttachSocket socket = AttachSocket::Connect(daemon.folder(), other.process());
    ASSERT_TRUE(Ok(socket.Send(JoinOf(root.session_credentials()))));
    const absl::Status refused = socket.Receive<attach::Joined>().status();
    EXPECT_TRUE(IsRefusal(refused, Reason::kBadCredentials)) << refused;
    EXPECT_TRUE(Ok(root.TryAcquire()));
  }
  daemon.ExpectAccountsBack();
}

TEST(IdentityTest, TenantSeesItsOwnOperatorSeesAll) {
  SKIP_UNLESS_ROOT();
  TestDaemon daemon;
  {
    RawClient root = RawClient::Open(daemon.folder());
    RawClient other = RawClient::Open(daemon.folder(), "berthd.sock", kOther);
    ASSERT_TRUE(Ok(root.TryAcquire()));
    ASSERT_TRUE(Ok(other.TryAcquire()));
    const auto sessions = other.Call(&v1::SessionService::Stub::ListSessions, v1::ListSessionsRequest());
    ASSERT_TRUE(Ok(sessions));
    ASSERT_EQ(sessions->sessions_size(), 1);
    EXPECT_EQ(sessions->sessions(0).tenant().uid(), kOther);
    EXPECT_EQ(sessions->sessions(0).opener().pid(), other.process().pid());
    const auto permits = other.Call(&v1::PermitService::Stub::ListPermits, v1::ListPermitsRequest());
    ASSERT_TRUE(Ok(permits));
    EXPECT_EQ(permits->permits_size(), 1);
    v1::GetSessionRequest get;
    get.set_session(root.session_credentials().session.value());
    EXPECT_TRUE(Refused(other.Call(&v1::SessionService::Stub::GetSession, get), Reason::kNotFound));
    EXPECT_EQ(Must(daemon.inspector().ListPermits()).permits_size(), 2);
    // A refusal that lists holders discloses none of a neighbour's names.
    RawClient third = RawClient::Open(daemon.folder(), "berthd.sock", kOther + 1);
    const absl::Status refused = third.TryAcquire().status();
    EXPECT_TRUE(Refused(refused, Reason::kNoPermit));
    EXPECT_TRUE(absl::StrContains(refused.message(), "another tenant")) << refused;
    EXPECT_FALSE(absl::StrContains(refused.message(), absl::StrCat(root.process().pid()))) << refused;
  }
  daemon.ExpectAccountsBack();
}

TEST(IdentityTest, BlockIsGrantedToOtherUserByName) {
  SKIP_UNLESS_ROOT();
  TestDaemon daemon;
  Actor owner(daemon);
  Actor other(daemon, {.uid = kOther});
  const BlockHandle handle = owner.Allocate("b", 4096);
  owner.Do("map b");
  owner.Do("fill b 2");
  EXPECT_TRUE(Refused(other.Ask(absl::StrCat("import b ", FormatHandle(handle))), Reason::kDenied));
  owner.Do(absl::StrCat("grant-tenant b ", kOther));
  EXPECT_TRUE(Ok(other.Ask(absl::StrCat("import b ", FormatHandle(handle), " ro"))));
  EXPECT_TRUE(Ok(other.Ask("map b")));
  EXPECT_TRUE(Ok(other.Ask("check b 2")));
  EXPECT_FALSE(Ok(other.Ask("writable b")));
  owner.Quit();
  // Quarantined bytes are charged to the importer's tenant from now on.
  ASSERT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.quarantined > 0; }));
  const v1::Usage usage = Must(daemon.inspector().GetUsage());
  ASSERT_EQ(usage.rows_size(), 1);
  EXPECT_EQ(usage.rows(0).tenant().uid(), kOther);
  other.Quit();
  daemon.ExpectAccountsBack();
}

TEST(IdentityTest, OperatorSocketIsClosedToOthers) {
  SKIP_UNLESS_ROOT();
  TestDaemon daemon;
  Actor other(daemon, {.uid = kOther});
  EXPECT_TRUE(
      absl::IsPermissionDenied(other.Ask(absl::StrCat("connect ", daemon.folder(), "/admin.sock")).status()));
  EXPECT_TRUE(Ok(other.Ask(absl::StrCat("connect ", daemon.folder(), "/berthd.sock"))));
  other.Quit();
  daemon.ExpectAccountsBack();
}

TEST(IdentityTest, ProcessInOwnPidNamespaceIsOwnTenant) {
  SKIP_UNLESS_UNSHARED(CLONE_NEWPID);
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  Actor outside(daemon);
  Actor inside(daemon, {.pid_namespace = true});
  EXPECT_EQ(inside.Do("pid"), "1");
  inside.Do("acquire p");
  const v1::ListPermitsResponse permits = Must(daemon.inspector().ListPermits());
  ASSERT_EQ(permits.permits_size(), 1);
  EXPECT_EQ(permits.permits(0).process().pid(), inside.pid());
  const v1::ListSessionsResponse sessions = Must(daemon.inspector().ListSessions());
  for (const v1::Session& session : sessions.sessions()) {
    EXPECT_EQ(session.tenant().container().empty(), session.id() != inside.session().value())
        << session.ShortDebugString();
  }
  // A grant to the user outside any container does not cover the same user inside one.
  const BlockHandle handle = outside.Allocate("b", 4096);
  outside.Do("grant-tenant b 0");
  EXPECT_TRUE(Refused(inside.Ask(absl::StrCat("import b ", FormatHandle(handle))), Reason::kDenied));
  outside.SendLine("acquire p");
  ASSERT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1; }));
  // The daemon detects its death across namespaces.
  inside.Kill();
  EXPECT_TRUE(Ok(outside.Answer()));
  outside.Quit();
  daemon.ExpectAccountsBack();
}

TEST(IdentityTest, PeerReadAsPidZeroIsServedAndItsDeathProved) {
  SKIP_UNLESS_UNSHARED(CLONE_NEWPID);
  // To a daemon in its own namespace, every process of the test is invisible.
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}, .pid_namespace = true});
  Actor holder(daemon);
  holder.Do("acquire p");
  const v1::ListPermitsResponse permits = Must(daemon.inspector().ListPermits());
  ASSERT_EQ(permits.permits_size(), 1);
  EXPECT_EQ(permits.permits(0).process().pid(), 0);
  const BlockHandle handle = holder.Allocate("b", 4096);
  Actor waiter(daemon);
  waiter.SendLine("acquire p");
  ASSERT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1; }));
  holder.Kill();
  EXPECT_TRUE(Ok(waiter.Answer()));
  EXPECT_FALSE(Ok(waiter.Ask(absl::StrCat("import b ", FormatHandle(handle)))));
  waiter.Quit();
  daemon.ExpectAccountsBack();
}

TEST(IdentityTest, DeathOfPidZeroPeerIsProvedToNextBroker) {
  SKIP_UNLESS_UNSHARED(CLONE_NEWPID);
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}, .pid_namespace = true});
  Actor holder(daemon);
  holder.Do("acquire p");
  Actor waiter(daemon);
  waiter.SendLine("acquire p");
  ASSERT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1; }));
  daemon.KillBroker();
  // The supervisor owns the proof of its death, opened when the process joined.
  ASSERT_TRUE(
      daemon.AccountsBecome([](const Accounts& accounts) { return accounts.permits == 1 && accounts.waiters == 1; }));
  holder.Kill();
  EXPECT_TRUE(Ok(waiter.Answer()));
  waiter.Quit();
  daemon.ExpectAccountsBack();
}

TEST(IdentityTest, OverflowUidIsRejected) {
  SKIP_UNLESS_ROOT();
  SKIP_UNLESS_UNSHARED(CLONE_NEWUSER);
  if (OtherUser().has_value()) GTEST_SKIP() << "every client but root's is refused here";
  // To a daemon in a user namespace that maps only root, every other user reads as 65534, and no other group exists.
  TestDaemon daemon({.flags = {"--client-group=12345", "--observer-group=12346"}, .user_namespace = true});
  Actor root(daemon);
  EXPECT_TRUE(Ok(root.Ask("acquire p")));
  Actor other(daemon, {.uid = kOther, .open = false});
  const absl::Status refused = other.Ask("open").status();
  EXPECT_TRUE(IsRefusal(refused, Reason::kUnknownPeer)) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "65534")) << refused;
  // The daemon also closes its connection to the other socket.
  PeerProcess peer = PeerProcess::Start(kOther);
  const UniqueFd socket = peer.Connect(daemon.folder() + "/berthd.sock", SOCK_STREAM);
  EXPECT_TRUE(Eventually([&] {
    char bytes[64];
    return ::recv(socket.get(), bytes, sizeof(bytes), MSG_DONTWAIT) == 0 || errno == ECONNRESET;
  }));
  root.Quit();
  other.Quit();
  peer.Kill();
  daemon.ExpectAccountsBack();
}

TEST(IdentityTest, ClosedSocketsDoNotProveDeath) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  auto holder = std::make_unique<RawClient>(RawClient::Open(daemon.folder()));
  ASSERT_TRUE(Ok(holder->TryAcquire()));
  // All sockets close first: the permit stays, because the process lives.
  holder->lifeline().Close();
  holder->channel().Close();
  ASSERT_TRUE(Eventually([&] {
    const v1::ListSessionsResponse sessions = Must(daemon.inspector().ListSessions());
    return sessions.sessions_size() == 2 && sessions.sessions(1).state() == v1::Session::ENDING;
  }));
  EXPECT_EQ(daemon.TakeAccounts().permits, 1u);
  holder->process().Kill();
  EXPECT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.permits == 0; }));
  holder.reset();

  // The process dies first, while another process still holds its sockets: the permit belongs to its session, which
  // lives.
  holder = std::make_unique<RawClient>(RawClient::Open(daemon.folder()));
  ASSERT_TRUE(Ok(holder->TryAcquire()));
  holder->process().Kill();
  ASSERT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.processes == 1; }));
  EXPECT_EQ(daemon.TakeAccounts().permits, 1u);
  holder->lifeline().Close();
  EXPECT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.permits == 0; }));
  holder.reset();
  daemon.ExpectAccountsBack();
}

TEST(IdentityTest, UnjoinedSessionEndsWithItsLifeline) {
  TestDaemon daemon;
  AttachSocket lifeline = AttachSocket::Connect(daemon.folder());
  ASSERT_TRUE(Ok(lifeline.Send(MakeHello("alone"))));
  ASSERT_TRUE(Ok(lifeline.Receive<attach::Welcome>()));
  EXPECT_EQ(daemon.TakeAccounts().sessions, 2u);
  lifeline.Close();
  daemon.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
