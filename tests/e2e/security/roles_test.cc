// Roles: read-only observers connect to observer.sock.

#include <sys/socket.h>

#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include <berth/error.h>
#include <berth/permit.h>
#include <berth/session.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "berth/v1/admin.grpc.pb.h"
#include "berth/v1/device.grpc.pb.h"
#include "berth/v1/memory.grpc.pb.h"
#include "berth/v1/permit.grpc.pb.h"
#include "berth/v1/plan.grpc.pb.h"
#include "berth/v1/session.grpc.pb.h"
#include "client/sdk/admin/inspector.h"
#include "client/sdk/transport/status_conversion.h"
#include "common/os/fd_passing.h"
#include "common/wire/session_credentials.h"
#include "grpcpp/create_channel_posix.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/peer_process.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

// A group of every Debian system; a process becomes a member with this as its gid.
constexpr char kGroup[] = "users";
constexpr uid_t kMember = 100;
constexpr uid_t kStranger = 1001;

// A user's connection to observer.sock that sends arbitrary requests.
class Observer {
 public:
  Observer(const std::string& folder, uid_t uid) : process_(PeerProcess::Start(uid)) {
    UniqueFd connection = process_.Connect(folder + "/observer.sock", SOCK_STREAM);
    Must(SetNonBlocking(connection.get()), "the connection");
    channel_ = grpc::CreateInsecureChannelFromFd("observer", connection.release());
  }

  template <typename Service, typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                                const std::type_identity_t<Request>& request) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    if (!credentials.empty()) context.AddMetadata(kCredentialsHeader, credentials);
    Response response;
    const auto stub = Service::NewStub(channel_);
    const grpc::Status status = (stub.get()->*method)(&context, request, &response);
    if (!status.ok()) return FromGrpc(status);
    return response;
  }

  // Sent with every call where it is not empty.
  std::string credentials;

 private:
  PeerProcess process_;
  std::shared_ptr<grpc::Channel> channel_;
};

class RolesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!IsRoot()) GTEST_SKIP() << "needs root: changes users";
  }
};

TEST_F(RolesTest, ObserverSeesEveryTenantAndChangesNothing) {
  TestDaemon daemon({.flags = {absl::StrCat("--observer-group=", kGroup)}});
  {
    Actor one(daemon, {.uid = 1001}), two(daemon, {.uid = 1002});
    one.Do("acquire p");
    two.Do("allocate b 4096");
    Observer observer(daemon.folder(), kMember);
    using v1::AdminService, v1::MemoryService, v1::PermitService, v1::SessionService;
    const auto sessions = Must(observer.Call<SessionService>(&SessionService::Stub::ListSessions, {}));
    EXPECT_GE(sessions.sessions_size(), 2);
    const auto permits = Must(observer.Call<PermitService>(&PermitService::Stub::ListPermits, {}));
    ASSERT_EQ(permits.permits_size(), 1);
    EXPECT_EQ(permits.permits(0).process().uid(), 1001u);
    const auto blocks = Must(observer.Call<MemoryService>(&MemoryService::Stub::ListBlocks, {}));
    ASSERT_EQ(blocks.blocks_size(), 1);
    EXPECT_TRUE(Ok(observer.Call<PermitService>(&PermitService::Stub::ListPools, {})));
    EXPECT_TRUE(Ok(observer.Call<PermitService>(&PermitService::Stub::ListStrays, {})));
    EXPECT_TRUE(Ok(observer.Call<MemoryService>(&MemoryService::Stub::ListBudgets, {})));
    EXPECT_TRUE(Ok(observer.Call<MemoryService>(&MemoryService::Stub::GetUsage, {})));
    EXPECT_GT(Must(observer.Call<MemoryService>(&MemoryService::Stub::ListLogRecords, {})).records_size(), 0);
    EXPECT_TRUE(Ok(observer.Call<v1::DeviceService>(&v1::DeviceService::Stub::ListDevices, {})));
    EXPECT_TRUE(Ok(observer.Call<v1::PlanService>(&v1::PlanService::Stub::ListPlans, {})));
    EXPECT_GT(Must(observer.Call<AdminService>(&AdminService::Stub::GetConfig, {})).values_size(), 10);

    const uint64_t session = permits.permits(0).session();
    v1::EndSessionRequest end;
    end.set_session(session);
    v1::RevokePermitRequest revoke;
    revoke.set_permit(permits.permits(0).id());
    v1::FreeBlockByIdRequest free;
    free.set_block(blocks.blocks(0).handle().block());
    v1::RecallBlockRequest recall;
    recall.set_block(blocks.blocks(0).handle().block());
    v1::AcquirePermitRequest acquire;
    acquire.set_holder_key("k");
    acquire.mutable_request()->set_sequence(1);
    v1::AllocateBlockRequest allocate;
    allocate.set_bytes(4096);
    allocate.mutable_request()->set_sequence(2);
    v1::SetBudgetRequest budget;
    budget.set_limit_bytes(1);
    const Accounts before = daemon.TakeAccounts();
    // Not even with credentials of an existing session of its own user.
    for (const std::string& credentials : {std::string(), std::string(32, 'x')}) {
      observer.credentials = credentials;
      for (const absl::Status& status :
           {observer.Call<SessionService>(&SessionService::Stub::EndSession, end).status(),
            observer.Call<MemoryService>(&MemoryService::Stub::FreeBlockById, free).status(),
            observer.Call<MemoryService>(&MemoryService::Stub::RecallBlock, recall).status(),
            observer.Call<MemoryService>(&MemoryService::Stub::SetBudget, budget).status(),
            observer.Call<PermitService>(&PermitService::Stub::AcquirePermit, acquire).status(),
            observer.Call<MemoryService>(&MemoryService::Stub::AllocateBlock, allocate).status(),
            observer.Call<AdminService>(&AdminService::Stub::ReapBlocks, {}).status()}) {
        EXPECT_TRUE(Refused(status, Reason::kObserverOnlyLooks, {{"socket", "berthd.sock"}})) << status;
        EXPECT_TRUE(absl::StrContains(status.message(), "berthd.sock")) << status;
      }
      for (const absl::Status& status :
           {observer.Call<AdminService>(&AdminService::Stub::RevokePermit, revoke).status(),
            observer.Call<AdminService>(&AdminService::Stub::SetPool, {}).status(),
            observer.Call<AdminService>(&AdminService::Stub::ReloadConfig, {}).status(),
            observer.Call<AdminService>(&AdminService::Stub::DropDevice, {}).status(),
            observer.Call<AdminService>(&AdminService::Stub::StopNode, {}).status(),
            observer.Call<AdminService>(&AdminService::Stub::ResetNode, {}).status(),
            observer.Call<AdminService>(&AdminService::Stub::UpgradeNode, {}).status()}) {
        EXPECT_TRUE(Refused(status, Reason::kAdminOnly)) << status;
      }
    }
    const auto unchanged = [&](Accounts after) {
      after.fds = before.fds;
      return after == before;
    };
    EXPECT_TRUE(daemon.AccountsBecome(unchanged)) << Describe(daemon.TakeAccounts());
  }
  daemon.ExpectAccountsBack();
}

TEST_F(RolesTest, NonMemberReachesNeitherObserverNorAdminSocket) {
  TestDaemon daemon({.flags = {absl::StrCat("--observer-group=", kGroup)}});
  {
    Actor stranger(daemon, {.uid = kStranger});
    for (const char* const socket : {"observer.sock", "admin.sock"}) {
      const absl::Status status =
          stranger.Ask(absl::StrCat("connect ", daemon.folder(), "/", socket)).status();
      EXPECT_TRUE(absl::IsPermissionDenied(status)) << socket << ": " << status;
    }
  }
  daemon.ExpectAccountsBack();
}

TEST_F(RolesTest, SocketWithoutGroupIsDaemonUsersOnly) {
  TestDaemon daemon({.flags = {"--observer-group=there-is-no-such-group"}});
  {
    Actor stranger(daemon, {.uid = kStranger});
    EXPECT_TRUE(absl::IsPermissionDenied(
        stranger.Ask(absl::StrCat("connect ", daemon.folder(), "/observer.sock")).status()));
  }
  daemon.ExpectAccountsBack();
}

// Observers through the SDK and the command, for whichever user runs the test.
TEST(ObserverTest, ObserverReadsAcrossBrokerDeathAndAcquiresNothing) {
  TestDaemon daemon;
  {
    Actor holder(daemon);
    holder.Do("acquire p");
    const auto session = Must(Session::Open({.folder = daemon.folder(), .observer = true}));
    const Inspector inspector(session);
    EXPECT_EQ(Must(inspector.ListPermits()).permits_size(), 1);
    const absl::Status refused = Permit::Acquire(session, {.max_wait = absl::ZeroDuration()}).status();
    EXPECT_TRUE(Refused(refused, Reason::kObserverOnlyLooks)) << refused;
    EXPECT_TRUE(Refused(session->End(), Reason::kObserverOnlyLooks));
    daemon.KillBroker();
    EXPECT_EQ(Must(inspector.ListPermits()).permits_size(), 1);
    EXPECT_GT(Must(inspector.GetConfig()).values_size(), 10);
    EXPECT_TRUE(Refused(inspector.ReapBlocks().status(), Reason::kObserverOnlyLooks));
  }
  daemon.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
