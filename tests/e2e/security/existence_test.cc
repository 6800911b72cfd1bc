// The existence of another tenant's objects is not disclosed: a call that names one gets, word for word, the answer of
// a call that names an object that never existed.

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "berth/v1/admin.grpc.pb.h"
#include "berth/v1/fence.grpc.pb.h"
#include "berth/v1/memory.grpc.pb.h"
#include "berth/v1/module.grpc.pb.h"
#include "berth/v1/permit.grpc.pb.h"
#include "berth/v1/plan.grpc.pb.h"
#include "berth/v1/resources.pb.h"
#include "berth/v1/session.grpc.pb.h"
#include "common/digest.h"
#include "common/wire/attach_wire.h"
#include "common/wire/session_credentials.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "gtest/gtest.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/testing.h"
#include "tests/support/wire/raw_client.h"

namespace berth::testing {
namespace {

constexpr uid_t kOwner = 1001;
constexpr uid_t kRequester = 1002;
constexpr char kOthersName[] = "weights";
constexpr char kNoName[] = "nothing";

// Returns `text` without `asked`, wherever it occurs as a word.
std::string Without(std::string text, const std::string& asked) {
  const auto joins = [&](size_t at) {
    return at < text.size() && absl::ascii_isalnum(static_cast<unsigned char>(text[at]));
  };
  for (size_t at = 0; (at = text.find(asked, at)) != std::string::npos;) {
    const size_t end = at + asked.size();
    if ((at > 0 && joins(at - 1)) || joins(end)) {
      at = end;
      continue;
    }
    text.replace(at, asked.size(), "<asked>");
    at += 7;
  }
  return text;
}

std::string WithoutId(std::string text, uint64_t id) {
  for (const std::string& form : {absl::StrFormat("%016x", id), absl::StrFormat("%x", id), absl::StrCat(id)}) {
    text = Without(std::move(text), form);
  }
  return text;
}

// Everything that a caller receives: code, text, every detail, and the answer's bytes.
std::string Describe(const grpc::Status& status, const std::string& answer) {
  std::string text = absl::StrCat("code ", static_cast<int>(status.error_code()), " ", status.error_message(), "\n");
  google::rpc::Status wire;
  EXPECT_TRUE(wire.ParseFromString(status.error_details()));
  absl::StrAppend(&text, "code ", wire.code(), " ", wire.message(), "\n");
  for (const google::protobuf::Any& detail : wire.details()) {
    google::rpc::ErrorInfo info;
    absl::StrAppend(&text, detail.type_url(), " ", detail.UnpackTo(&info) ? info.DebugString() : detail.value(), "\n");
  }
  return text + answer;
}

// A client that owns an object of every kind, and another user's client that requests them.
class Tenants {
 public:
  // Calls `method` with the request that `fill` builds from an id or a name.
  template <typename Stub, typename Request, typename Response, typename What, typename Fill>
  std::string Ask(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*), const What& what,
                  Fill fill) {
    Request request;
    if constexpr (requires { request.mutable_request(); }) *request.mutable_request() = requester_.NextTag();
    fill(&request, what);
    Response response;
    const grpc::Status status =
        requester_.StatusOf(EncodeCredentials(requester_.credentials()), method, request, &response);
    return Describe(status, response.SerializeAsString());
  }
  template <typename Stub, typename Request, typename Response, typename Fill>
  void ExpectSame(const char* what, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                  uint64_t others, Fill fill) {
    ASSERT_NE(others, 0u) << what;
    const uint64_t none = others ^ 0x5a5a;
    EXPECT_EQ(WithoutId(Ask(method, others, fill), others), WithoutId(Ask(method, none, fill), none)) << what;
  }
  template <typename Stub, typename Request, typename Response, typename Fill>
  void ExpectSameName(const char* what, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                      Fill fill) {
    const std::string others = kOthersName;
    const std::string none = kNoName;
    EXPECT_EQ(Without(Ask(method, others, fill), others), Without(Ask(method, none, fill), none)) << what;
  }
  template <typename Stub, typename Request, typename Response>
  Response Must(RawClient& client, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                Request request) {
    if constexpr (requires { request.mutable_request(); }) *request.mutable_request() = client.NextTag();
    return testing::Must(client.Call(method, request), Request::descriptor()->name());
  }
  static v1::AcquirePermitRequest Acquire(const std::string& key, int64_t wait_seconds) {
    v1::AcquirePermitRequest request;
    request.set_holder_key(key);
    request.mutable_max_wait()->set_seconds(wait_seconds);
    return request;
  }

  TestDaemon& daemon() { return daemon_; }
  RawClient& owner() { return owner_; }
  RawClient& requester() { return requester_; }

 private:
  TestDaemon daemon_{{.config = "[pools.gpu-tests]\ncap = 1\n"}};
  RawClient owner_ = RawClient::Open(daemon_.folder(), "berthd.sock", kOwner);
  RawClient requester_ = RawClient::Open(daemon_.folder(), "berthd.sock", kRequester);
};

// The publication of a block whose owner has released it.
v1::PublishBlockRequest Publication(const v1::AllocateBlockResponse& made, const std::string& name) {
  v1::PublishBlockRequest request;
  *request.mutable_handle() = made.block().handle();
  request.set_name(name);
  request.add_let_go(made.import());
  return request;
}

#define SKIP_UNLESS_ROOT() \
  if (!IsRoot()) GTEST_SKIP() << "needs root: is two other users"

TEST(ExistenceTest, ForeignObjectIsAnsweredAsMissing) {
  SKIP_UNLESS_ROOT();
  Tenants t;
  RawClient& owner = t.owner();
  RawClient& requester = t.requester();

  // One object of each kind. Ids count up from 1; these are higher than any other number in an answer.
  using Permits = v1::PermitService::Stub;
  for (int i = 0; i < 40; ++i) {
    v1::ReleasePermitRequest release;
    release.set_acquisition(t.Must(owner, &Permits::AcquirePermit, Tenants::Acquire("k", 0)).acquisition());
    t.Must(owner, &Permits::ReleasePermit, release);
  }
  const v1::AcquirePermitResponse permit = t.Must(owner, &Permits::AcquirePermit, Tenants::Acquire("k", 0));
  std::thread waiting([&] {
    v1::AcquirePermitRequest request = Tenants::Acquire("waits", 600);
    *request.mutable_request() = owner.NextTag();
    EXPECT_FALSE(owner.Call(&Permits::AcquirePermit, request, absl::Minutes(10)).ok());
  });
  v1::ListPermitsResponse held;
  ASSERT_TRUE(Eventually([&] {
    held = testing::Must(t.daemon().inspector().ListPermits());
    return held.waiters_size() == 1;
  }));
  using Memory = v1::MemoryService::Stub;
  v1::AllocateBlockRequest allocate;
  allocate.set_bytes(4096);
  const v1::AllocateBlockResponse block = t.Must(owner, &Memory::AllocateBlock, allocate);
  t.Must(owner, &Memory::PublishBlock, Publication(t.Must(owner, &Memory::AllocateBlock, allocate), kOthersName));
  v1::ReserveBytesRequest reserve;
  reserve.add_items()->set_bytes(4096);
  const uint64_t reservation = t.Must(owner, &Memory::ReserveBytes, reserve).id();
  v1::MakePlanRequest make;
  make.set_units(4);
  make.set_weight_source(v1::MakePlanRequest::SCORE);
  const uint64_t plan = t.Must(owner, &v1::PlanService::Stub::MakePlan, make).plan().id();
  using Fences = v1::FenceService::Stub;
  v1::PrepareUseRequest prepare;
  prepare.set_slot(t.Must(owner, &Fences::OpenStream, v1::OpenStreamRequest()).slot());
  v1::PrepareUseRequest::Use* const used = prepare.add_uses();
  used->set_block(block.block().handle().block());
  used->set_access(v1::PrepareUseRequest::WRITE);
  const uint64_t use = t.Must(owner, &Fences::PrepareUse, prepare).use();
  const Digest key = {.bits = {9, 9, 9}};
  v1::ObtainModuleRequest obtain;
  obtain.set_key(std::string(key.bytes()));
  obtain.set_architecture("sm_90");
  const uint64_t compile = t.Must(owner, &v1::ModuleService::Stub::ObtainModule, obtain).compile();
  const v1::AllocateBlockResponse own = t.Must(requester, &Memory::AllocateBlock, allocate);
  v1::PrepareUseRequest asks = prepare;
  asks.set_slot(t.Must(requester, &Fences::OpenStream, v1::OpenStreamRequest()).slot());

  // Sessions.
  const uint64_t session = owner.credentials().session.value();
  t.ExpectSame("GetSession", &v1::SessionService::Stub::GetSession, session,
               [](v1::GetSessionRequest* request, uint64_t id) { request->set_session(id); });
  t.ExpectSame("EndSession", &v1::SessionService::Stub::EndSession, session,
               [](v1::EndSessionRequest* request, uint64_t id) { request->set_session(id); });
  t.ExpectSame("GrantBlock to a session", &Memory::GrantBlock, session,
               [&](v1::GrantBlockRequest* request, uint64_t id) {
                 *request->mutable_handle() = own.block().handle();
                 request->set_session(id);
               });
  t.ExpectSame("SetBudget", &Memory::SetBudget, session, [](v1::SetBudgetRequest* request, uint64_t id) {
    request->set_session(id);
    request->set_limit_bytes(1);
  });
  // Permits.
  for (const bool if_idle : {false, true}) {
    t.ExpectSame("ReleasePermit", &Permits::ReleasePermit, permit.acquisition(),
                 [&](v1::ReleasePermitRequest* request, uint64_t id) {
                   request->set_acquisition(id);
                   request->set_if_idle(if_idle);
                 });
  }
  t.ExpectSame("ExplainWait", &Permits::ExplainWait, held.waiters(0).number(),
               [](v1::ExplainWaitRequest* request, uint64_t id) { request->set_waiter(id); });
  t.ExpectSame("RevokePermit", &v1::AdminService::Stub::RevokePermit, permit.permit(),
               [](v1::RevokePermitRequest* request, uint64_t id) { request->set_permit(id); });
  // Blocks, by handle and by id.
  const auto handle = [&](auto* request, uint64_t id) {
    *request->mutable_handle() = block.block().handle();
    request->mutable_handle()->set_block(id);
  };
  const uint64_t others = block.block().handle().block();
  t.ExpectSame("FreeBlock", &Memory::FreeBlock, others,
               [&](v1::FreeBlockRequest* request, uint64_t id) { handle(request, id); });
  t.ExpectSame("ImportBlock", &Memory::ImportBlock, others,
               [&](v1::ImportBlockRequest* request, uint64_t id) { handle(request, id); });
  t.ExpectSame("PublishBlock", &Memory::PublishBlock, others, [&](v1::PublishBlockRequest* request, uint64_t id) {
    handle(request, id);
    request->set_name("mine");
  });
  t.ExpectSame("GrantBlock", &Memory::GrantBlock, others, [&](v1::GrantBlockRequest* request, uint64_t id) {
    handle(request, id);
    request->mutable_tenant()->set_uid(kRequester);
  });
  t.ExpectSame("RecallBlock", &Memory::RecallBlock, others,
               [](v1::RecallBlockRequest* request, uint64_t id) { request->set_block(id); });
  t.ExpectSame("FreeBlockById", &Memory::FreeBlockById, others,
               [](v1::FreeBlockByIdRequest* request, uint64_t id) { request->set_block(id); });
  t.ExpectSame("ClearTorn", &Fences::ClearTorn, others,
               [](v1::ClearTornRequest* request, uint64_t id) { request->set_block(id); });
  t.ExpectSame("PrepareUse", &Fences::PrepareUse, others, [&](v1::PrepareUseRequest* request, uint64_t id) {
    const v1::RequestTag tag = request->request();
    *request = asks;
    *request->mutable_request() = tag;
    request->mutable_uses(0)->set_block(id);
  });
  // Reservations, plans, uses on streams, compiles.
  t.ExpectSame("ReleaseReservation", &Memory::ReleaseReservation, reservation,
               [](v1::ReleaseReservationRequest* request, uint64_t id) { request->set_reservation(id); });
  t.ExpectSame("AllocateBlock", &Memory::AllocateBlock, reservation,
               [](v1::AllocateBlockRequest* request, uint64_t id) {
                 request->set_bytes(1);
                 request->set_reservation(id);
               });
  t.ExpectSame("GetPlan", &v1::PlanService::Stub::GetPlan, plan,
               [](v1::GetPlanRequest* request, uint64_t id) { request->set_plan(id); });
  t.ExpectSame("Replan", &v1::PlanService::Stub::Replan, plan,
               [](v1::ReplanRequest* request, uint64_t id) { request->set_plan(id); });
  t.ExpectSame("ReleasePlan", &v1::PlanService::Stub::ReleasePlan, plan,
               [](v1::ReleasePlanRequest* request, uint64_t id) { request->set_plan(id); });
  t.ExpectSame("FinishUse", &Fences::FinishUse, use,
               [](v1::FinishUseRequest* request, uint64_t id) { request->set_use(id); });
  t.ExpectSame("AbandonUse", &Fences::AbandonUse, use,
               [](v1::AbandonUseRequest* request, uint64_t id) { request->set_use(id); });
  t.ExpectSame("StoreModule", &v1::ModuleService::Stub::StoreModule, compile,
               [&](v1::StoreModuleRequest* request, uint64_t id) {
                 request->set_compile(id);
                 request->set_bytes(1);
                 request->set_content(std::string(key.bytes()));
               });
  t.ExpectSame("AbandonModule", &v1::ModuleService::Stub::AbandonModule, compile,
               [](v1::AbandonModuleRequest* request, uint64_t id) { request->set_compile(id); });
  // Names, and the key of a module that another client compiles.
  t.ExpectSameName("ImportBlock", &Memory::ImportBlock,
                   [](v1::ImportBlockRequest* request, const std::string& name) {
                     request->set_name(name);
                     request->set_read_only(true);
                   });
  t.ExpectSameName("UnpublishBlock", &Memory::UnpublishBlock,
                   [](v1::UnpublishBlockRequest* request, const std::string& name) { request->set_name(name); });
  EXPECT_NE(t.Must(requester, &v1::ModuleService::Stub::ObtainModule, obtain).compile(), 0u)
      << "is told to compile it itself";
  t.Must(requester, &Memory::PublishBlock, Publication(own, kOthersName));

  // The requested objects are unchanged.
  EXPECT_EQ(t.daemon().TakeAccounts().units, 1u);
  EXPECT_EQ(t.daemon().TakeAccounts().waiters, 1u);
  v1::FreeBlockRequest free;
  *free.mutable_handle() = block.block().handle();
  t.Must(owner, &Fences::AbandonUse, [&] {
    v1::AbandonUseRequest abandon;
    abandon.set_use(use);
    return abandon;
  }());
  t.Must(owner, &Memory::FreeBlock, free);
  v1::ReleasePlanRequest over;
  over.set_plan(plan);
  t.Must(owner, &v1::PlanService::Stub::ReleasePlan, over);
  t.Must(owner, &v1::SessionService::Stub::EndSession, v1::EndSessionRequest());
  waiting.join();
}

TEST(ExistenceTest, ListsOmitForeignObjects) {
  SKIP_UNLESS_ROOT();
  Tenants t;
  RawClient& owner = t.owner();
  const std::string label = "of-the-owner";
  v1::AcquirePermitRequest acquire = Tenants::Acquire(label, 0);
  acquire.set_label(label);
  t.Must(owner, &v1::PermitService::Stub::AcquirePermit, acquire);
  v1::AllocateBlockRequest allocate;
  allocate.set_bytes(4096);
  allocate.set_label(label);
  t.Must(owner, &v1::MemoryService::Stub::PublishBlock,
         Publication(t.Must(owner, &v1::MemoryService::Stub::AllocateBlock, allocate), label));
  v1::ReserveBytesRequest reserve;
  reserve.add_items()->set_bytes(4096);
  reserve.set_label(label);
  t.Must(owner, &v1::MemoryService::Stub::ReserveBytes, reserve);
  v1::MakePlanRequest make;
  make.set_units(4);
  make.set_label(label);
  make.set_weight_source(v1::MakePlanRequest::SCORE);
  t.Must(owner, &v1::PlanService::Stub::MakePlan, make);
  v1::ObtainModuleRequest obtain;
  obtain.set_key(std::string(Digest{.bits = {9}}.bytes()));
  obtain.set_architecture("sm_90");
  obtain.set_label(label);
  t.Must(owner, &v1::ModuleService::Stub::ObtainModule, obtain);
  t.Must(owner, &v1::FenceService::Stub::OpenStream, v1::OpenStreamRequest());
  const auto rows = [&](RawClient& client) {
    return std::vector<std::string>{
        t.Must(client, &v1::PermitService::Stub::ListPermits, v1::ListPermitsRequest()).SerializeAsString(),
        t.Must(client, &v1::MemoryService::Stub::ListBlocks, v1::ListBlocksRequest()).SerializeAsString(),
        t.Must(client, &v1::MemoryService::Stub::ListReservations, v1::ListReservationsRequest()).SerializeAsString(),
        t.Must(client, &v1::MemoryService::Stub::ListLogRecords, v1::ListLogRecordsRequest()).SerializeAsString(),
        t.Must(client, &v1::PlanService::Stub::ListPlans, v1::ListPlansRequest()).SerializeAsString(),
        t.Must(client, &v1::ModuleService::Stub::ListModules, v1::ListModulesRequest()).SerializeAsString()};
  };
  const std::vector<std::string> own = rows(owner);
  const std::vector<std::string> others = rows(t.requester());
  for (size_t i = 0; i < own.size(); ++i) {
    EXPECT_TRUE(absl::StrContains(own[i], label)) << i;
    EXPECT_FALSE(absl::StrContains(others[i], label)) << i;
  }
  const auto none = [&](const auto& list) { EXPECT_EQ(list.SerializeAsString().size(), 0u) << list.DebugString(); };
  none(t.Must(t.requester(), &v1::FenceService::Stub::ListStreams, v1::ListStreamsRequest()));
  const std::string sessions =
      t.Must(t.requester(), &v1::SessionService::Stub::ListSessions, v1::ListSessionsRequest()).DebugString();
  EXPECT_FALSE(absl::StrContains(sessions, absl::StrCat(owner.credentials().session.value()))) << sessions;
  const std::string budgets =
      t.Must(t.requester(), &v1::MemoryService::Stub::ListBudgets, v1::ListBudgetsRequest()).DebugString();
  EXPECT_FALSE(absl::StrContains(budgets, absl::StrCat(owner.credentials().session.value()))) << budgets;
  EXPECT_FALSE(absl::StrContains(budgets, absl::StrCat("uid: ", kOwner))) << budgets;
}

TEST(ExistenceTest, AttachSocketRevealsNothingOfOthers) {
  SKIP_UNLESS_ROOT();
  Tenants t;
  const uint64_t others = t.owner().credentials().session.value();
  const auto join = [&](uint64_t session) {
    AttachSocket socket = AttachSocket::Connect(t.daemon().folder(), t.requester().process());
    EXPECT_TRUE(Ok(socket.Send(attach::Join{.session = session})));
    const absl::StatusOr<Message> answer = socket.Receive();
    EXPECT_TRUE(Ok(answer));
    return answer.ok() ? WithoutId(answer->bytes, session) : "";
  };
  EXPECT_EQ(join(others), join(others ^ 0x5a5a));
  const uint64_t acquisition =
      t.Must(t.owner(), &v1::PermitService::Stub::AcquirePermit, Tenants::Acquire("k", 0)).acquisition();
  const auto give_back = [&](uint64_t id) {
    EXPECT_TRUE(Ok(t.requester().channel().Send(attach::GiveBack{.acquisition = id})));
    const auto answer = t.requester().channel().Receive<attach::GaveBack>();
    EXPECT_TRUE(Ok(answer));
    return answer.ok() ? answer->first.taken : 99;
  };
  EXPECT_EQ(give_back(acquisition), give_back(acquisition + 1'000));
  EXPECT_EQ(t.daemon().TakeAccounts().units, 1u);
}

}  // namespace
}  // namespace berth::testing
