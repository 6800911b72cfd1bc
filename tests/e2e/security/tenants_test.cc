// Tenants and accounts: a user cannot create further accounts for itself with any kernel feature. Containers are
// distinguished or refused (docs/design/0033).

#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "berth/v1/memory.grpc.pb.h"
#include "berth/v1/permit.grpc.pb.h"
#include "berth/v1/session.grpc.pb.h"
#include "client/sdk/transport/status_conversion.h"
#include "common/os/unique_fd.h"
#include "common/steady_clock.h"
#include "common/wire/attach_wire.h"
#include "gtest/gtest.h"
#include "tests/support/cgroup.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/peer_process.h"
#include "tests/support/testing.h"
#include "tests/support/whole_lines.h"
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

// Starts the processes of one user, each in a way that the user can make.
class Inventions {
 protected:
  // Skips the test if the kernel does not allow that; the result is then incomplete.
  std::vector<PeerProcess> StartProcesses(const Invention& invention) {
    std::vector<PeerProcess> processes;
    Start(invention, &processes);
    return processes;
  }

 private:
  void Start(const Invention& invention, std::vector<PeerProcess>* processes) {
    for (int i = 0; i < kInventions; ++i) {
      PeerOptions options = invention.options;
      if (invention.subordinate) options.subordinate_uid = kSubordinate + static_cast<uid_t>(i);
      if (invention.cgroup) {
        options.cgroup = cgroups_.emplace_back(absl::StrCat("berth-test-", i)).path();
        if (options.cgroup.empty()) GTEST_SKIP() << "no cgroup of the unified hierarchy can be made here";
      }
      absl::StatusOr<PeerProcess> process = PeerProcess::TryStart(options);
      if (!process.ok()) GTEST_SKIP() << "the kernel makes no such process here: " << process.status();
      processes->push_back(*std::move(process));
    }
  }

  std::vector<Cgroup> cgroups_;
};

class InventionTest : public ::testing::TestWithParam<Invention>, protected Inventions {
 protected:
  // Opens a client of each process. Skips the test as StartProcesses() does.
  std::vector<RawClient> Invent(const TestDaemon& daemon) {
    std::vector<RawClient> inventions;
    for (PeerProcess& process : StartProcesses(GetParam())) {
      inventions.push_back(RawClient::Open(daemon.folder(), "berthd.sock", std::move(process)));
    }
    return inventions;
  }
};

// Returns the number of lines of the audit log about `what`, in any share or in `share`.
int CountLines(const TestDaemon& daemon, const std::string& what, const std::string& share = "") {
  int count = 0;
  for (const std::string& line : WholeLines(daemon.folder() + "/state/audit.jsonl")) {
    const bool in_share = share.empty() || absl::StrContains(line, absl::StrCat(R"("share":")", share, "\""));
    count += in_share && absl::StrContains(line, absl::StrCat(R"("what":")", what, "\"")) ? 1 : 0;
  }
  return count;
}

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

// Sends a request for a permit on the side channel, which may wait.
void AskForPermit(RawClient& client) {
  v1::AcquirePermitRequest request;
  *request.mutable_request() = client.NextTag();
  request.set_holder_key("waits");
  const std::string body = request.SerializeAsString();
  attach::Ask ask = {.method = attach::Method::kAcquirePermit,
                     .number = 1,
                     .session = client.session_credentials().session.value(),
                     .secret = client.session_credentials().secret,
                     .bytes = static_cast<uint32_t>(body.size())};
  memcpy(ask.body, body.data(), body.size());
  Must(client.channel().Send(
           absl::string_view(reinterpret_cast<const char*>(&ask), attach::Ask::BytesOf(ask.bytes))),
       "ask");
}

// Returns the refusal that answers AskForPermit(), or OK for another answer.
absl::Status ReceiveRefusal(RawClient& client) {
  absl::StatusOr<Message> message = client.channel().Receive();
  while (message.ok() && message->bytes.size() == sizeof(attach::Delivery)) message = client.channel().Receive();
  if (!message.ok()) return message.status();
  attach::Answer answer;
  memcpy(&answer, message->bytes.data(), std::min(message->bytes.size(), sizeof(answer)));
  if (answer.outcome != attach::Answer::Outcome::kRefused) return absl::OkStatus();
  return FromStatusProto(std::string(answer.body, answer.bytes));
}

// Two requests of an account may wait for the pool's only unit.
TEST_P(InventionTest, UserHasSingleLimitOfWaiters) {
  SKIP_UNLESS_ROOT();
  TestDaemon daemon({.config = "[tenants]\nwaiters = 2\n", .environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  const auto waiters_become = [&](uint64_t count) {
    return daemon.AccountsBecome([count](const Accounts& accounts) { return accounts.waiters == count; });
  };
  {
    RawClient neighbour = RawClient::Open(daemon.folder(), "berthd.sock", kNeighbour);
    ASSERT_TRUE(Ok(TryAcquire(neighbour)));
    RawClient outside = RawClient::Open(daemon.folder(), "berthd.sock", kUser);
    AskForPermit(outside);
    ASSERT_TRUE(waiters_become(1));
    std::vector<RawClient> inventions = Invent(daemon);
    if (IsSkipped()) return;
    AskForPermit(inventions[0]);
    ASSERT_TRUE(waiters_become(2));
    for (int i = 1; i < kInventions; ++i) {
      AskForPermit(inventions[i]);
      ASSERT_TRUE(Refused(ReceiveRefusal(inventions[i]), Reason::kLimit, {{"current", "2"}, {"limit", "2"}}));
    }
    AskForPermit(neighbour);
    EXPECT_TRUE(waiters_become(3));
  }
  daemon.ExpectAccountsBack();
}

// The share of each record in the audit log's files is the user's.
TEST_P(InventionTest, UserHasSingleShareOfAuditLog) {
  SKIP_UNLESS_ROOT();
  TestDaemon daemon;
  {
    std::vector<RawClient> inventions = Invent(daemon);
    if (IsSkipped()) return;
    for (RawClient& invention : inventions) (void)TryAcquire(invention);
  }
  ASSERT_TRUE(Eventually([&] { return CountLines(daemon, "acquire") == kInventions; }));
  EXPECT_EQ(CountLines(daemon, "acquire", absl::StrCat(kUser)), kInventions);
  for (const char* const what : {"open_session", "join_session"}) {
    EXPECT_EQ(CountLines(daemon, what, absl::StrCat("admission ", kUser)), kInventions) << what;
  }
  daemon.ExpectAccountsBack();
}

std::vector<Invention> AllInventions() {
  return {
      {.name = "UserNamespace", .options = {.uid = kUser, .user_namespace = true}},
      {.name = "UserAndPidNamespace", .options = {.uid = kUser, .user_namespace = true, .pid_namespace = true}},
      {.name = "DelegatedCgroup", .options = {.uid = kUser}, .cgroup = true},
      {.name = "DelegatedCgroupAndNamespaces",
       .options = {.uid = kUser, .user_namespace = true, .pid_namespace = true},
       .cgroup = true},
      {.name = "SubordinateUid", .options = {.uid = kUser, .user_namespace = true}, .subordinate = true},
  };
}

INSTANTIATE_TEST_SUITE_P(Tenants, InventionTest, ::testing::ValuesIn(AllInventions()),
                         [](const auto& info) { return std::string(info.param.name); });

// Connects to attach.sock and opens a session. Returns the session's lifeline.
absl::StatusOr<AttachSocket> OpenSession(const TestDaemon& daemon, PeerProcess& process) {
  AttachSocket lifeline = AttachSocket::Connect(daemon.folder(), process);
  // Fails if the daemon has closed the connection already; the refusal is still there.
  lifeline.Send(MakeHello("invention")).IgnoreError();
  const absl::Status welcomed = lifeline.Receive<attach::Welcome>().status();
  if (!welcomed.ok()) return welcomed;
  return lifeline;
}

// A limit of two for each user on what OpenSession() takes.
struct SessionLimit {
  const char* name;
  const char* config;
  // Part of the refusal.
  const char* text;
};

class SessionLimitTest : public ::testing::TestWithParam<std::tuple<SessionLimit, Invention>>, protected Inventions {};

TEST_P(SessionLimitTest, UserHasSingleLimit) {
  SKIP_UNLESS_ROOT();
  const auto& [limit, invention] = GetParam();
  TestDaemon daemon({.config = limit.config});
  {
    PeerProcess outside = PeerProcess::Start(kUser);
    const AttachSocket first = Must(OpenSession(daemon, outside));
    std::vector<PeerProcess> processes = StartProcesses(invention);
    if (IsSkipped()) return;
    std::vector<AttachSocket> opened;
    for (PeerProcess& process : processes) {
      absl::StatusOr<AttachSocket> session = OpenSession(daemon, process);
      if (session.ok()) {
        opened.push_back(*std::move(session));
      } else {
        EXPECT_TRUE(IsRefusal(session.status(), Reason::kLimit)) << session.status();
        EXPECT_TRUE(absl::StrContains(session.status().message(), limit.text)) << session.status();
      }
    }
    EXPECT_EQ(opened.size(), 1u) << "of two, one was taken";
    PeerProcess neighbour = PeerProcess::Start(kNeighbour);
    const AttachSocket second = Must(OpenSession(daemon, neighbour));
    const AttachSocket third = Must(OpenSession(daemon, neighbour));
  }
  daemon.ExpectAccountsBack();
}

INSTANTIATE_TEST_SUITE_P(
    Tenants, SessionLimitTest,
    ::testing::Combine(
        ::testing::Values(SessionLimit{"Sessions", "[tenants]\nsessions = 2\n", "sessions of the tenant: 2, limit 2"},
                          SessionLimit{"AttachFds", "[limits]\nattach_fds_per_uid = 2\n",
                                       "fds of attach.sock connections of uid 7001: 2, limit 2"}),
        ::testing::ValuesIn(AllInventions())),
    [](const auto& info) { return absl::StrCat(std::get<0>(info.param).name, std::get<1>(info.param).name); });

// Connects to gRPC's socket, where an admitted connection gets HTTP/2's settings, and another one its end.
absl::Status ConnectToGrpc(const TestDaemon& daemon, PeerProcess& process) {
  const UniqueFd socket = process.Connect(daemon.folder() + "/berthd.sock", SOCK_STREAM);
  pollfd entry = {.fd = socket.get(), .events = POLLIN, .revents = 0};
  if (::poll(&entry, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience))) != 1) {
    return absl::DeadlineExceededError("nothing came on berthd.sock");
  }
  char byte;
  return ::recv(socket.get(), &byte, 1, 0) == 1 ? absl::OkStatus() : absl::ResourceExhaustedError("closed");
}

// A socket with a rate of new connections.
struct Entrance {
  const char* name;
  absl::Status (*connect)(const TestDaemon& daemon, PeerProcess& process);
};

class AcceptRateTest : public ::testing::TestWithParam<std::tuple<Entrance, Invention>>, protected Inventions {};

// The daemon knows the user of an additional uid only once it has read the process's user namespaces.
TEST_P(AcceptRateTest, UserHasSingleRate) {
  SKIP_UNLESS_ROOT();
  const auto& [entrance, invention] = GetParam();
  // The bursts are 4.096 times these rates.
  constexpr double kBurst = 4.096;
  TestDaemon daemon({.config = "[limits]\naccepts_per_second_per_uid = 1\naccepts_per_second = 3\n"});
  PeerProcess outside = PeerProcess::Start(kUser);
  std::vector<PeerProcess> processes = StartProcesses(invention);
  if (IsSkipped()) return;
  processes.push_back(std::move(outside));
  constexpr int kConnectionsOfEach = 6;
  int admitted = 0, refused = 0;
  const absl::Time start = SteadyNow();
  for (PeerProcess& process : processes) {
    for (int i = 0; i < kConnectionsOfEach; ++i) {
      const absl::Status connected = entrance.connect(daemon, process);
      ++(connected.ok() ? admitted : refused);
      EXPECT_TRUE(connected.ok() || absl::IsResourceExhausted(connected)) << connected;
    }
  }
  const double seconds = absl::ToDoubleSeconds(SteadyNow() - start);
  EXPECT_GE(admitted, static_cast<int>(kBurst));
  EXPECT_LE(admitted, kBurst + seconds);
  PeerProcess neighbour = PeerProcess::Start(kNeighbour);
  EXPECT_TRUE(Ok(entrance.connect(daemon, neighbour))) << "the user took more than its part of the rate of all";
  // The refusals are in the user's share of the audit log.
  ASSERT_TRUE(Eventually([&] { return CountLines(daemon, "connect") >= refused; }));
  EXPECT_EQ(CountLines(daemon, "connect", absl::StrCat("admission ", kUser)), refused);
}

INSTANTIATE_TEST_SUITE_P(
    Tenants, AcceptRateTest,
    ::testing::Combine(::testing::Values(Entrance{"Attach",
                                                  [](const TestDaemon& daemon, PeerProcess& process) {
                                                    return OpenSession(daemon, process).status();
                                                  }},
                                         Entrance{"Grpc", ConnectToGrpc}),
                       ::testing::ValuesIn(AllInventions())),
    [](const auto& info) { return absl::StrCat(std::get<0>(info.param).name, std::get<1>(info.param).name); });

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
