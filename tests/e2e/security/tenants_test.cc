// Tenants and accounts: a user cannot create further accounts for itself with any kernel feature. Containers are
// distinguished or refused (docs/design/0033).

#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/memory.grpc.pb.h"
#include "berth/v1/permit.grpc.pb.h"
#include "berth/v1/session.grpc.pb.h"
#include "gtest/gtest.h"
#include "tests/support/cgroup.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/peer_process.h"
#include "tests/support/testing.h"
#include "tests/support/wire/raw_client.h"

namespace berth::testing {
namespace {

constexpr uid_t kUser = 7001;
constexpr uid_t kNeighbour = 7002;
constexpr uid_t kSubordinate = 100'000;
constexpr int kInventions = 5;

#define SKIP_UNLESS_ROOT() \
  if (!IsRoot()) GTEST_SKIP() << "needs root: changes users"
#define SKIP_UNLESS_UNSHARED() \
  if (!MayUnshare(CLONE_NEWPID)) GTEST_SKIP() << "needs the right to make PID namespaces"

absl::Status TryAcquire(RawClient& client) {
  v1::AcquirePermitRequest request;
  *request.mutable_request() = client.NextTag();
  request.set_holder_key(absl::StrCat("k", request.request().sequence()));
  request.mutable_max_wait();
  return client.Call(&v1::PermitService::Stub::AcquirePermit, request).status();
}

struct Invention {
  const char* name;
  PeerOptions options;
  // Each client is in a separate cgroup, as a user makes them in a delegated subtree.
  bool cgroup = false;
  // Each client has a subordinate uid.
  bool subordinate = false;
};

class InventionTest : public ::testing::TestWithParam<Invention> {
 protected:
  // Opens kInventions clients of one user, each in a way that the user can make. Skips the test if the kernel does not
  // allow that; the result is then incomplete.
  std::vector<RawClient> Invent(const TestDaemon& daemon) {
    std::vector<RawClient> inventions;
    Open(daemon, &inventions);
    return inventions;
  }

 private:
  void Open(const TestDaemon& daemon, std::vector<RawClient>* inventions) {
    for (int i = 0; i < kInventions; ++i) {
      PeerOptions options = GetParam().options;
      if (GetParam().subordinate) options.subordinate_uid = kSubordinate + static_cast<uid_t>(i);
      if (GetParam().cgroup) {
        options.cgroup = cgroups_.emplace_back(absl::StrCat("berth-test-", i)).path();
        if (options.cgroup.empty()) GTEST_SKIP() << "no cgroup of the unified hierarchy can be made here";
      }
      absl::StatusOr<PeerProcess> peer = PeerProcess::TryStart(options);
      if (!peer.ok()) GTEST_SKIP() << "the kernel makes no such process here: " << peer.status();
      inventions->push_back(RawClient::Open(daemon.folder(), "berthd.sock", *std::move(peer)));
    }
  }

  std::vector<Cgroup> cgroups_;
};

// The quota of permits is 2; the pool has 16.
TEST_P(InventionTest, UserHasSingleQuotaOverAllTenants) {
  SKIP_UNLESS_ROOT();
  TestDaemon daemon({.config = "[tenants]\npermits = 2\n", .environment = {"BERTH_GPU_TEST_CONCURRENCY=16"}});
  {
    RawClient outside = RawClient::Open(daemon.folder(), "berthd.sock", kUser);
    EXPECT_TRUE(Ok(TryAcquire(outside)));
    std::vector<RawClient> inventions = Invent(daemon);
    if (IsSkipped()) return;
    int granted = 0;
    for (RawClient& invention : inventions) {
      for (int i = 0; i < 2; ++i) {
        const absl::Status acquired = TryAcquire(invention);
        granted += acquired.ok() ? 1 : 0;
        if (acquired.ok()) continue;
        EXPECT_TRUE(Refused(acquired, Reason::kNoPermit, {{"cap", "2"}})) << acquired;
      }
    }
    EXPECT_EQ(granted, 1) << "of two, one was out";
    EXPECT_EQ(daemon.TakeAccounts().permits, 2u);
    // Another user gets the rest of the pool, and has its own quota.
    RawClient neighbour = RawClient::Open(daemon.folder(), "berthd.sock", kNeighbour);
    EXPECT_TRUE(Ok(TryAcquire(neighbour)));
    EXPECT_TRUE(Ok(TryAcquire(neighbour)));
    // The next broker counts as this one did.
    daemon.KillBroker();
    ASSERT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.permits == 4; }));
    absl::StatusOr<PeerProcess> peer = PeerProcess::TryStart({.uid = kUser, .user_namespace = true});
    if (!peer.ok()) return;
    RawClient late = RawClient::Open(daemon.folder(), "berthd.sock", *std::move(peer));
    EXPECT_TRUE(Refused(TryAcquire(late), Reason::kNoPermit, {{"out", "2"}}));
  }
  daemon.ExpectAccountsBack();
}

absl::Status Allocate(RawClient& client, uint64_t bytes) {
  v1::AllocateBlockRequest request;
  *request.mutable_request() = client.NextTag();
  request.set_bytes(bytes);
  return client.Call(&v1::MemoryService::Stub::AllocateBlock, request).status();
}

// The budget of an account has space for two of the blocks.
TEST_P(InventionTest, UserHasSingleBudgetOverAllTenants) {
  SKIP_UNLESS_ROOT();
  constexpr uint64_t kBytes = 4 << 20;
  TestDaemon daemon({.config = "[memory]\ntenant_budget = \"8MiB\"\n"});
  {
    RawClient outside = RawClient::Open(daemon.folder(), "berthd.sock", kUser);
    EXPECT_TRUE(Ok(Allocate(outside, kBytes)));
    std::vector<RawClient> inventions = Invent(daemon);
    if (IsSkipped()) return;
    int granted = 0;
    for (RawClient& invention : inventions) {
      const absl::Status allocated = Allocate(invention, kBytes);
      granted += allocated.ok() ? 1 : 0;
      EXPECT_TRUE(allocated.ok() || Refused(allocated, Reason::kOverBudget)) << allocated;
    }
    EXPECT_EQ(granted, 1);
    RawClient neighbour = RawClient::Open(daemon.folder(), "berthd.sock", kNeighbour);
    EXPECT_TRUE(Ok(Allocate(neighbour, kBytes)));
    EXPECT_TRUE(Ok(Allocate(neighbour, kBytes)));
  }
  daemon.ExpectAccountsBack();
}

// An account may have two gRPC connections.
TEST_P(InventionTest, UserHasSingleLimitOfConnections) {
  SKIP_UNLESS_ROOT();
  TestDaemon daemon({.config = "[tenants]\nconnections = 2\n"});
  {
    const auto is_served = [](RawClient& client) {
      return client.Call(&v1::SessionService::Stub::ListSessions, v1::ListSessionsRequest()).ok();
    };
    RawClient outside = RawClient::Open(daemon.folder(), "berthd.sock", kUser);
    EXPECT_TRUE(is_served(outside));
    std::vector<RawClient> inventions = Invent(daemon);
    if (IsSkipped()) return;
    int served = 0;
    for (RawClient& invention : inventions) served += is_served(invention) ? 1 : 0;
    EXPECT_EQ(served, 1);
    RawClient neighbour = RawClient::Open(daemon.folder(), "berthd.sock", kNeighbour);
    EXPECT_TRUE(is_served(neighbour));
  }
  daemon.ExpectAccountsBack();
}

INSTANTIATE_TEST_SUITE_P(
    Tenants, InventionTest,
    ::testing::Values(
        Invention{.name = "UserNamespace", .options = {.uid = kUser, .user_namespace = true}},
        Invention{.name = "UserAndPidNamespace",
                  .options = {.uid = kUser, .user_namespace = true, .pid_namespace = true}},
        Invention{.name = "DelegatedCgroup", .options = {.uid = kUser}, .cgroup = true},
        Invention{.name = "DelegatedCgroupAndNamespaces",
                  .options = {.uid = kUser, .user_namespace = true, .pid_namespace = true},
                  .cgroup = true},
        Invention{.name = "SubordinateUid", .options = {.uid = kUser, .user_namespace = true}, .subordinate = true}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(TenantsTest, ContainerMadeByRootHasOwnAccount) {
  SKIP_UNLESS_UNSHARED();
  TestDaemon daemon({.config = "[tenants]\npermits = 1\n", .environment = {"BERTH_GPU_TEST_CONCURRENCY=16"}});
  {
    RawClient outside = RawClient::Open(daemon.folder(), "berthd.sock", kUser);
    RawClient one =
        RawClient::Open(daemon.folder(), "berthd.sock", PeerProcess::Start({.uid = kUser, .pid_namespace = true}));
    RawClient another =
        RawClient::Open(daemon.folder(), "berthd.sock", PeerProcess::Start({.uid = kUser, .pid_namespace = true}));
    for (RawClient* const client : {&outside, &one, &another}) {
      EXPECT_TRUE(Ok(TryAcquire(*client)));
      EXPECT_TRUE(Refused(TryAcquire(*client), Reason::kNoPermit));
    }
  }
  daemon.ExpectAccountsBack();
}

TEST(TenantsTest, SubordinateUidIsSeparateTenant) {
  SKIP_UNLESS_ROOT();
  TestDaemon daemon;
  {
    absl::StatusOr<PeerProcess> peer =
        PeerProcess::TryStart({.uid = kUser, .user_namespace = true, .subordinate_uid = kSubordinate});
    if (!peer.ok()) GTEST_SKIP() << "the kernel makes no such process here: " << peer.status();
    RawClient subordinate = RawClient::Open(daemon.folder(), "berthd.sock", *std::move(peer));
    RawClient user = RawClient::Open(daemon.folder(), "berthd.sock", kUser);
    const auto sessions = subordinate.Call(&v1::SessionService::Stub::ListSessions, v1::ListSessionsRequest());
    ASSERT_TRUE(Ok(sessions));
    ASSERT_EQ(sessions->sessions_size(), 1) << "the user's are another tenant's";
    EXPECT_EQ(sessions->sessions(0).tenant().uid(), kSubordinate);
    EXPECT_EQ(sessions->sessions(0).tenant().container(), "");
  }
  daemon.ExpectAccountsBack();
}

// Allocates a block, and publishes it as `name`.
absl::Status Publish(RawClient& client, const std::string& name) {
  v1::AllocateBlockRequest allocate;
  *allocate.mutable_request() = client.NextTag();
  allocate.set_bytes(4096);
  const auto block = client.Call(&v1::MemoryService::Stub::AllocateBlock, allocate);
  if (!block.ok()) return block.status();
  const auto delivered = client.ReceiveBlock();
  if (!delivered.ok()) return delivered.status();
  v1::PublishBlockRequest publish;
  *publish.mutable_request() = client.NextTag();
  *publish.mutable_handle() = block->block().handle();
  publish.set_name(name);
  publish.add_let_go(block->import());
  return client.Call(&v1::MemoryService::Stub::PublishBlock, publish).status();
}

absl::Status Import(RawClient& client, const std::string& name) {
  v1::ImportBlockRequest import;
  *import.mutable_request() = client.NextTag();
  import.set_name(name);
  import.set_read_only(true);
  return client.Call(&v1::MemoryService::Stub::ImportBlock, import).status();
}

absl::Status Unpublish(RawClient& client, const std::string& name) {
  v1::UnpublishBlockRequest unpublish;
  *unpublish.mutable_request() = client.NextTag();
  unpublish.set_name(name);
  return client.Call(&v1::MemoryService::Stub::UnpublishBlock, unpublish).status();
}

class PodsTest : public ::testing::TestWithParam<bool> {};

// Two containers of one uid, with a daemon in the host's PID namespace and with one in its own, which sees no pid of
// theirs. Where the kernel cannot tell them apart, the daemon refuses them.
TEST_P(PodsTest, ContainerReachesNothingOfOtherContainer) {
  SKIP_UNLESS_UNSHARED();
  for (const uid_t uid : {uid_t{0}, kUser}) {
    TestDaemon daemon({.pid_namespace = GetParam()});
    {
      PeerProcess first = PeerProcess::Start({.uid = uid, .pid_namespace = true});
      PeerProcess second = PeerProcess::Start({.uid = uid, .pid_namespace = true});
      AttachSocket probe = AttachSocket::Connect(daemon.folder(), first);
      (void)probe.Send(MakeHello("probe"));
      const absl::Status known = probe.Receive<attach::Welcome>().status();
      if (!known.ok()) {
        EXPECT_TRUE(IsRefusal(known, Reason::kUnknownPeer)) << known;
        EXPECT_TRUE(absl::StrContains(known.message(), "Linux 6.11")) << known;
        GTEST_SKIP() << "this kernel does not tell such containers apart, and they are refused: " << known;
      }
      probe.Close();
      RawClient a = RawClient::Open(daemon.folder(), "berthd.sock", std::move(first));
      RawClient b = RawClient::Open(daemon.folder(), "berthd.sock", std::move(second));
      ASSERT_TRUE(Ok(Publish(a, "weights")));
      EXPECT_TRUE(Refused(Import(b, "weights"), Reason::kDenied));
      EXPECT_TRUE(Refused(Unpublish(b, "weights"), Reason::kNotFound));
      const auto sessions = b.Call(&v1::SessionService::Stub::ListSessions, v1::ListSessionsRequest());
      ASSERT_TRUE(Ok(sessions));
      EXPECT_EQ(sessions->sessions_size(), 1) << sessions->ShortDebugString();
      EXPECT_TRUE(Ok(Publish(b, "weights"))) << "the name is free there";
      EXPECT_TRUE(Ok(Import(a, "weights")));
      EXPECT_TRUE(Ok(Unpublish(a, "weights")));
      EXPECT_TRUE(Ok(Unpublish(b, "weights")));
    }
    daemon.ExpectAccountsBack();
  }
}

INSTANTIATE_TEST_SUITE_P(Tenants, PodsTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "DaemonInAPidNamespace" : "DaemonOnTheHost"; });

}  // namespace
}  // namespace berth::testing
