// One unprivileged user takes as much as possible of a shared resource, and holds it. The daemon still serves another
// user and an operator, that user's earlier leases stay, and the broker stays within its memory bound; the next broker,
// too. daemon/core/sessions/core_shares_test tests the counts alone, tests/e2e/security/evidence_test evidence,
// floods_test connections. The gate takes the resources of which few exist.

#include <signal.h>
#include <sys/types.h>

#include <functional>
#include <list>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/history.grpc.pb.h"
#include "berth/v1/memory.grpc.pb.h"
#include "berth/v1/module.pb.h"
#include "berth/v1/permit.grpc.pb.h"
#include "common/mutex.h"
#include "common/wire/attach_wire.h"
#include "common/wire/session_credentials.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/environment.h"
#include "tests/support/testing.h"
#include "tests/support/wire/raw_client.h"

namespace berth::testing {
namespace {

constexpr uid_t kGreedy = 1001;
constexpr uid_t kOther = 1002;
// A bound of the broker's memory a little above its need. The memory of a sanitizer is no broker's.
#ifdef BERTH_SANITIZED
constexpr char kLittleMemory[] = "";
#else
constexpr char kLittleMemory[] = "[limits]\nbroker_memory = \"256MiB\"\n";
#endif
// Unsettled requests of one client: the daemon accepts no more on one channel.
constexpr int kCallsPerClient = 1'000;

// Returns the detail "what" of a refusal with LIMIT; empty for any other status.
std::string LimitOf(const absl::Status& status) {
  const std::optional<ErrorDetails> details = GetErrorDetails(status);
  if (!details.has_value() || details->reason != Reason::kLimit) return "";
  const auto what = details->metadata.find("what");
  return what == details->metadata.end() ? "?" : what->second;
}

// Pending calls of any number of clients. They end with this object.
class Crowd {
 public:
  ~Crowd() {
    for (Call& call : calls_) call.context.TryCancel();
    MutexLock lock(&mu_);
    while (ended_ < calls_.size()) changed_.Wait(&mu_);
  }

  template <typename Request>
  void Start(RawClient& client, const std::string& method, const Request& request) {
    Call& call = calls_.emplace_back();
    call.context.AddMetadata(kCredentialsHeader, EncodeCredentials(client.credentials()));
    const grpc::Slice slice(request.SerializeAsString());
    call.request = grpc::ByteBuffer(&slice, 1);
    call.stub = std::make_unique<grpc::GenericStub>(client.grpc_channel());
    call.stub->UnaryCall(&call.context, method, grpc::StubOptions(), &call.request, &call.response,
                         [this](const grpc::Status& status) {
                           MutexLock lock(&mu_);
                           ++ended_;
                           if (const std::string what = LimitOf(FromGrpc(status)); !what.empty()) limit_ = what;
                           changed_.Signal();
                         });
  }
  // Returns the limit that a call has reached so far.
  std::string limit() const {
    MutexLock lock(&mu_);
    return limit_;
  }
  // Waits until `calls` have ended.
  void AwaitEnded(size_t calls) {
    MutexLock lock(&mu_);
    while (ended_ < calls) changed_.Wait(&mu_);
  }
  size_t size() const { return calls_.size(); }

 private:
  struct Call {
    grpc::ClientContext context;
    grpc::ByteBuffer request;
    grpc::ByteBuffer response;
    std::unique_ptr<grpc::GenericStub> stub;
  };

  std::list<Call> calls_;
  mutable Mutex mu_;
  CondVar changed_;
  size_t ended_ ABSL_GUARDED_BY(mu_) = 0;
  std::string limit_ ABSL_GUARDED_BY(mu_);
};

class Node {
 public:
  Node(const std::string& config, const std::vector<std::string>& flags)
      : daemon_({.flags = flags,
                 .config = config,
                 .environment = {"BERTH_GPU_TEST_CONCURRENCY=1"},
                 .fd_limit = 4'096}) {}
  ~Node() {
    if (stopped_worker_ != 0) ::kill(stopped_worker_, SIGCONT);
  }

  TestDaemon& daemon() { return daemon_; }
  // The only worker makes no block from now on.
  void StopWorker() {
    if (stopped_worker_ == 0) stopped_worker_ = daemon_.workers().at(0);
    EXPECT_EQ(::kill(stopped_worker_, SIGSTOP), 0);
  }
  RawClient& NewGreedy() { return AddClient(kGreedy); }
  RawClient Client(uid_t uid) {
    return RawClient::Open(daemon_.folder(), uid == 0 ? "admin.sock" : "berthd.sock", uid);
  }
  Crowd& crowd() { return crowds_.back(); }
  // Leaves the earlier calls as they are.
  void NewCrowd() { crowds_.emplace_back(); }
  std::vector<AttachSocket>& sockets() { return sockets_; }

 private:
  RawClient& AddClient(uid_t uid) { return clients_.emplace_back(Client(uid)); }

  TestDaemon daemon_;
  pid_t stopped_worker_ = 0;
  std::list<RawClient> clients_;
  std::vector<AttachSocket> sockets_;
  // Calls end before their clients.
  std::list<Crowd> crowds_ = std::list<Crowd>(1);
};

// A resource that users share.
struct Resource {
  const char* name;
  // Takes it for the greedy user until the daemon refuses; returns the limit that the refusal names.
  std::function<std::string(Node&)> take;
  // Requests the same for another user, or for an operator (0).
  std::function<absl::Status(Node&, uid_t)> want;
  std::string config = "";
  // The daemon's flags.
  std::vector<std::string> flags = {};
  // Takes as much again from the broker after; empty where the greedy user's places ended with the first broker.
  std::function<std::string(Node&)> again = nullptr;
  // Gives the other user a lease beforehand, which it still has afterwards.
  std::function<void(Node&)> before = [](Node&) {};
  std::function<void(Node&)> after = [](Node&) {};
};
void PrintTo(const Resource& resource, std::ostream* out) { *out << resource.name; }

v1::AcquirePermitRequest Wait(RawClient& client, absl::Duration longest) {
  v1::AcquirePermitRequest request;
  *request.mutable_request() = client.NextTag();
  request.set_holder_key(absl::StrCat("k", request.request().sequence()));
  request.mutable_max_wait()->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(longest) % 1'000'000'000));
  request.mutable_max_wait()->set_seconds(absl::ToInt64Seconds(longest));
  return request;
}

std::string TakeWaiters(Node& node) {
  Must(node.NewGreedy().TryAcquire(), "the one unit");
  while (node.crowd().limit().empty()) {
    RawClient& client = node.NewGreedy();
    for (int i = 0; i < kCallsPerClient; ++i) {
      node.crowd().Start(client, "/berth.v1.PermitService/AcquirePermit", Wait(client, absl::Hours(1)));
    }
    // The daemon has accepted or refused the last call of this client.
    client.Call(&v1::PermitService::Stub::GetPool, v1::GetPoolRequest()).IgnoreError();
  }
  return node.crowd().limit();
}

absl::Status WantToWait(Node& node, uid_t uid) {
  RawClient client = node.Client(uid);
  const absl::Status status =
      client.Call(&v1::PermitService::Stub::AcquirePermit, Wait(client, absl::Milliseconds(1))).status();
  return IsRefusal(status, Reason::kWaitTimedOut) ? absl::OkStatus() : status;
}

// The device has bytes for all blocks, and the daemon does not replace the stopped worker.
std::vector<std::string> FlagsForCreates() {
  return {"--host-bytes=16GiB", "--device-budget=16GiB", "--call-deadline=600s"};
}

v1::AllocateBlockRequest OneBlock(RawClient& client) {
  v1::AllocateBlockRequest request;
  *request.mutable_request() = client.NextTag();
  request.set_bytes(1);
  return request;
}

std::string TakeCreates(Node& node) {
  node.StopWorker();
  while (node.crowd().limit().empty() && node.crowd().size() < 20'000) {
    RawClient& client = node.NewGreedy();
    for (int i = 0; i < kCallsPerClient; ++i) {
      node.crowd().Start(client, "/berth.v1.MemoryService/AllocateBlock", OneBlock(client));
    }
    // The daemon has accepted or refused the last call of this client.
    client.Call(&v1::PermitService::Stub::GetPool, v1::GetPoolRequest()).IgnoreError();
  }
  EXPECT_EQ(node.crowd().limit(), "creates_per_worker");
  return node.crowd().limit();
}

// An accepted request waits for the stopped worker until its call ends.
absl::Status WantABlock(Node& node, uid_t uid) {
  RawClient client = node.Client(uid);
  const absl::Status status =
      client.Call(&v1::MemoryService::Stub::AllocateBlock, OneBlock(client), absl::Seconds(1)).status();
  const bool waited = absl::IsDeadlineExceeded(status) || absl::IsCancelled(status);
  return waited ? absl::OkStatus() : status;
}

std::string TakeSessions(Node& node) {
  PeerProcess process = PeerProcess::Start(kGreedy);
  while (true) {
    AttachSocket socket = AttachSocket::Connect(node.daemon().folder(), process);
    // Fails if the daemon has closed the connection already; the refusal is still there.
    socket.Send(MakeHello("greedy")).IgnoreError();
    const absl::Status status = socket.Receive<attach::Welcome>().status();
    if (!status.ok()) return IsRefusal(status, Reason::kLimit) ? "sessions" : std::string(status.message());
    node.sockets().push_back(std::move(socket));
  }
}

// Makes each answer as long as allowed.
std::string TakeAnswers(Node& node) {
  v1::ImportBlockRequest request;
  request.set_name(std::string(128, 'n'));
  while (node.crowd().limit().empty()) {
    RawClient& client = node.NewGreedy();
    for (int i = 0; i < kCallsPerClient; ++i) {
      *request.mutable_request() = client.NextTag();
      node.crowd().Start(client, "/berth.v1.MemoryService/ImportBlock", request);
    }
    node.crowd().AwaitEnded(node.crowd().size());
  }
  return node.crowd().limit();
}

absl::Status WantAnAnswer(Node& node, uid_t uid) {
  RawClient client = node.Client(uid);
  absl::Status status;
  // The one unit may be on its way back from the client before.
  Eventually([&] { return !IsRefusal(status = client.TryAcquire().status(), Reason::kNoPermit); });
  return status;
}

std::string TakeQueries(Node& node) {
  RawClient& client = node.NewGreedy();
  while (node.crowd().limit().empty() && node.crowd().size() < 20'000) {
    for (int i = 0; i < 64; ++i) {
      node.crowd().Start(client, "/berth.v1.HistoryService/ListHistory", v1::ListHistoryRequest());
    }
    client.Call(&v1::PermitService::Stub::GetPool, v1::GetPoolRequest()).IgnoreError();
  }
  return node.crowd().limit();
}

absl::Status WantToQuery(Node& node, uid_t uid) {
  RawClient client = node.Client(uid);
  return client.Call(&v1::HistoryService::Stub::ListHistory, v1::ListHistoryRequest()).status();
}

void StoreModule(Node& node) {
  Actor other(node.daemon(), {.uid = kOther});
  EXPECT_EQ(other.Do("module m evidence bytes=20000").substr(0, 8), "compiled");
}

// Compiles modules of that size until the daemon evicts some.
std::string TakeModules(Node& node, int most, int bytes) {
  const auto evicted = [&] { return Must(node.daemon().inspector().ListModules()).usage().evicted(); };
  Actor greedy(node.daemon(), {.uid = kGreedy});
  for (int i = 0; i < most; ++i) greedy.Do(absl::StrCat("module m greedy", i, " bytes=", bytes));
  return evicted() > 0 ? "modules" : "";
}
// The places are 1,024.
std::string TakeModulePlaces(Node& node) { return TakeModules(node, 1'040, 0); }
// Ten such modules find space (kSmallCache).
constexpr char kSmallCache[] = "[modules]\ntotal = \"200KB\"\n";
std::string TakeModuleBytes(Node& node) { return TakeModules(node, 30, 20'000); }

std::string TakeCompiles(Node& node) {
  RawClient& client = node.NewGreedy();
  v1::ObtainModuleRequest request;
  for (int i = 0; node.crowd().limit().empty() && i < kCallsPerClient; ++i) {
    *request.mutable_request() = client.NextTag();
    request.set_key(absl::StrCat(std::string(28, 'k'), absl::Dec(i, absl::kZeroPad4)));
    node.crowd().Start(client, "/berth.v1.ModuleService/ObtainModule", request);
    node.crowd().AwaitEnded(node.crowd().size());
  }
  return node.crowd().limit();
}

absl::Status WantAModule(Node& node, uid_t uid) {
  Actor actor(node.daemon(), {.uid = uid});
  const absl::StatusOr<std::string> got = actor.Ask("module m another");
  if (!got.ok() || !absl::StartsWith(*got, "alone")) return got.status();
  return absl::ResourceExhaustedError("the daemon neither had nor took the module");
}

void FindModule(Node& node) {
  Actor other(node.daemon(), {.uid = kOther});
  EXPECT_EQ(other.Do("module m evidence bytes=20000").substr(0, 4), "node") << "it was evicted";
}

class HoardTest : public ::testing::TestWithParam<Resource> {};

TEST_P(HoardTest, HoardDoesNotStopOtherUserOrOperator) {
  if (!IsRoot()) GTEST_SKIP() << "needs root: clients of several users";
  const Resource& resource = GetParam();
  Node node(resource.config, resource.flags);
  resource.before(node);
  const auto expect_served = [&](const std::string& limit) {
    EXPECT_FALSE(limit.empty()) << "nothing was refused";
    EXPECT_TRUE(Ok(resource.want(node, kOther))) << limit;
    EXPECT_TRUE(Ok(resource.want(node, 0))) << limit;
    resource.after(node);
    const v1::Pressure pressure = node.daemon().GetNode().pressure();
    EXPECT_EQ(pressure.memory_restarts(), 0u);
    EXPECT_LE(pressure.memory_bytes(), pressure.memory_bound_bytes());
  };
  const std::string limit = resource.take(node);
  expect_served(limit);
  node.daemon().KillBroker();
  node.NewCrowd();
  expect_served(resource.again == nullptr ? limit : resource.again(node));
}

std::vector<Resource> Resources() {
  std::vector<Resource> resources = {
      Resource{.name = "Sessions", .take = TakeSessions, .want = WantAnAnswer, .again = TakeSessions},
      Resource{.name = "Queries", .take = TakeQueries, .want = WantToQuery},
      Resource{.name = "Compiles", .take = TakeCompiles, .want = WantAModule, .again = TakeCompiles},
      Resource{.name = "Creates",
               .take = TakeCreates,
               .want = WantABlock,
               .flags = FlagsForCreates(),
               .again = TakeCreates},
      Resource{.name = "ModuleBytes",
               .take = TakeModuleBytes,
               .want = WantAModule,
               .config = kSmallCache,
               .again = TakeModuleBytes,
               .before = StoreModule,
               .after = FindModule}};
  if (!Soaks()) return resources;
  resources.push_back(Resource{.name = "Waiters", .take = TakeWaiters, .want = WantToWait});
  resources.push_back(Resource{.name = "Answers",
                               .take = TakeAnswers,
                               .want = WantAnAnswer,
                               .config = kLittleMemory,
                               .again = TakeAnswers});
  resources.push_back(Resource{.name = "Modules",
                               .take = TakeModulePlaces,
                               .want = WantAModule,
                               .before = StoreModule,
                               .after = FindModule});
  return resources;
}

INSTANTIATE_TEST_SUITE_P(Resources, HoardTest, ::testing::ValuesIn(Resources()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace berth::testing
