// SessionService, PermitService and PlanService.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "berth/v1/permit.grpc.pb.h"
#include "berth/v1/plan.grpc.pb.h"
#include "berth/v1/resources.pb.h"
#include "berth/v1/session.grpc.pb.h"
#include "common/label.h"
#include "common/status_macros.h"
#include "daemon/service/conversion/conversion.h"
#include "daemon/service/conversion/page.h"
#include "daemon/service/conversion/permit_conversion.h"
#include "daemon/service/conversion/plan_conversion.h"
#include "daemon/service/rpc/permit_requests.h"
#include "daemon/service/rpc/plan_requests.h"
#include "daemon/service/rpc/services.h"
#include "daemon/service/rpc/unary_call.h"
#include "daemon/service/transport/arena_allocator.h"

namespace berth::service {

// ---- SessionService: sessions, and the forgetting of requests ------------------------------------------------

namespace {

struct ForgetTraits : RpcDefaults<core::ForgetResult> {
  static void Encode(const core::ForgetResult& result, v1::ForgetRequestResponse* out) {
    out->set_outcome(static_cast<v1::ForgetRequestResponse::Outcome>(result.outcome));
  }
  static void AddResultFacts(const core::ForgetResult& result, AuditFacts* facts) {
    switch (result.outcome) {
      case core::ForgetOutcome::kCancelled:
        return void(facts->emplace_back("forgotten", "cancelled"));
      case core::ForgetOutcome::kUndone:
        return void(facts->emplace_back("forgotten", "undone"));
      case core::ForgetOutcome::kRemembered:
      case core::ForgetOutcome::kNothingToDo:
        return void(facts->emplace_back("forgotten", "nothing"));
    }
  }
};

class SessionService final : public v1::SessionService::CallbackService {
 public:
  explicit SessionService(ServiceContext context) : context_(context) {}

  grpc::ServerUnaryReactor* GetSession(grpc::CallbackServerContext* context, const v1::GetSessionRequest* request,
                                       v1::Session* response) override {
    return ServeLook(
        context_, context,
        [&](const core::Core& core, const core::Caller& caller) {
          return core.GetSession(caller, SessionId(request->session()));
        },
        [&](const core::SessionView& view) { ToProto(view, response); });
  }

  grpc::ServerUnaryReactor* ListSessions(grpc::CallbackServerContext* context, const v1::ListSessionsRequest* request,
                                         v1::ListSessionsResponse* response) override {
    return ServePage(
        context_, context, *request, response,
        [](const core::Core& core, const core::Caller& caller, const core::PageRequest& page) {
          return core.ListSessions(caller, page);
        },
        [&](const core::SessionView& view) { ToProto(view, response->add_sessions()); });
  }

  grpc::ServerUnaryReactor* EndSession(grpc::CallbackServerContext* context, const v1::EndSessionRequest* request,
                                       v1::Session* response) override {
    const absl::StatusOr<core::Caller> caller = context_.callers->Identify(*context);
    if (!caller.ok()) return FinishRefused(context_, context, "end_session", caller, caller.status());
    // A client may end its own session, which this broker has opened.
    const absl::Status ledger = request->session() == 0 ? absl::OkStatus() : context_.broker->CheckLedger();
    if (!ledger.ok()) return FinishRefused(context_, context, "end_session", caller, ledger);
    absl::StatusOr<core::SessionView> view;
    context_.broker->Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
      view = core.EndSession(now, *caller, SessionId(request->session()), effects);
    });
    if (view.ok()) ToProto(*view, response);
    const uint64_t ended = request->session() == 0 ? caller->credentials.session.value() : request->session();
    return FinishDecided(context_, context,
                         {.what = "end_session", .facts = {{"ended", absl::StrCat(ended)}}, .caller = *caller},
                         view.status());
  }

  grpc::ServerUnaryReactor* ForgetRequest(grpc::CallbackServerContext* context,
                                          const v1::ForgetRequestRequest* request,
                                          v1::ForgetRequestResponse* response) override {
    const absl::StatusOr<core::Caller> caller = context_.callers->Identify(*context);
    if (!caller.ok()) return FinishRefused(context_, context, "forget", caller, caller.status());
    return PendingCall<ForgetTraits, v1::ForgetRequestResponse>::Submit(
        context_, context, response,
        {.what = "forget", .facts = {{"request", std::to_string(request->sequence())}}, .caller = *caller},
        [&](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
          core.Forget(now, id, *caller, request->sequence(), effects);
        });
  }

 private:
  const ServiceContext context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeSessionService(const ServiceContext& context) {
  return std::make_unique<SessionService>(context);
}

// ---- PermitService: permits and pools ------------------------------------------------------------------------

namespace {

// The permits and, with the first page, the waiters and the counts of both.
struct Holders {
  core::Page<core::PermitView> permits;
  std::vector<core::WaiterView> waiters;
  core::PermitCounts counts;
};

class PermitService final : public v1::PermitService::CallbackService {
 public:
  explicit PermitService(ServiceContext context) : context_(context) {}

  grpc::ServerUnaryReactor* AcquirePermit(grpc::CallbackServerContext* context,
                                          const v1::AcquirePermitRequest* request,
                                          v1::AcquirePermitResponse* response) override {
    return SubmitRequest<core::AcquireRequest>(context_, context, *request, response);
  }

  grpc::ServerUnaryReactor* AcquireGang(grpc::CallbackServerContext* context, const v1::AcquireGangRequest* request,
                                        v1::AcquireGangResponse* response) override {
    return SubmitRequest<core::GangRequest>(context_, context, *request, response);
  }

  grpc::ServerUnaryReactor* ReleasePermit(grpc::CallbackServerContext* context,
                                          const v1::ReleasePermitRequest* request,
                                          v1::ReleasePermitResponse* response) override {
    if (request->if_idle()) {
      return SubmitRequest<core::ReleaseIfIdleRequest>(context_, context, *request, response);
    }
    return SubmitRequest<AcquisitionId>(context_, context, *request, response);
  }

  grpc::ServerUnaryReactor* KeepPermits(grpc::CallbackServerContext* context, const v1::KeepPermitsRequest* request,
                                        v1::KeepPermitsResponse* response) override {
    return SubmitRequest<core::KeepPermitsRequest>(context_, context, *request, response);
  }

  grpc::ServerUnaryReactor* ListStrays(grpc::CallbackServerContext* context, const v1::ListStraysRequest*,
                                       v1::ListStraysResponse* response) override {
    return ServeLook(
        context_, context,
        [](const core::Core& core, const core::Caller& caller) -> absl::StatusOr<std::vector<core::StrayView>> {
          return core.ListStrays(caller);
        },
        [&](const std::vector<core::StrayView>& strays) {
          for (const core::StrayView& stray : strays) ToProto(stray, response->add_strays());
        });
  }

  grpc::ServerUnaryReactor* GetPool(grpc::CallbackServerContext* context, const v1::GetPoolRequest* request,
                                    v1::Pool* response) override {
    return ServeLook(
        context_, context,
        [&](const core::Core& core, const core::Caller&) -> absl::StatusOr<core::PoolView> {
          BERTH_RETURN_IF_ERROR(ValidateLabel("pool", request->pool()));
          return core.GetPool(PoolName(request->pool()));
        },
        [&](const core::PoolView& view) { ToProto(view, response); });
  }

  grpc::ServerUnaryReactor* ListPools(grpc::CallbackServerContext* context, const v1::ListPoolsRequest* request,
                                      v1::ListPoolsResponse* response) override {
    return ServePage(
        context_, context, *request, response,
        [](const core::Core& core, const core::Caller&, const core::PageRequest& page) {
          return core.ListPools(page);
        },
        [&](const core::PoolView& view) { ToProto(view, response->add_pools()); });
  }

  grpc::ServerUnaryReactor* ListPermits(grpc::CallbackServerContext* context, const v1::ListPermitsRequest* request,
                                        v1::ListPermitsResponse* response) override {
    const absl::StatusOr<core::PageRequest> page = ReadPage(request->page_size(), request->page_token());
    return ServeLook(
        context_, context,
        [&](const core::Core& core, const core::Caller& caller) -> absl::StatusOr<Holders> {
          BERTH_RETURN_IF_ERROR(page.status());
          if (!request->pool().empty()) {
            BERTH_RETURN_IF_ERROR(ValidateLabel("pool", request->pool()));
            BERTH_RETURN_IF_ERROR(core.GetPool(request->pool()).status());
          }
          Holders holders = {.permits = core.ListPermits(caller, request->pool(), *page)};
          if (page->after > 0) return holders;
          holders.waiters = core.ListWaiters(caller, request->pool(), page->rows);
          holders.counts = core.CountPermits(caller, request->pool());
          return holders;
        },
        [&](const Holders& holders) {
          for (const core::PermitView& view : holders.permits) ToProto(view, response->add_permits());
          MarkStopped(response->mutable_permits());
          for (const core::WaiterView& view : holders.waiters) ToProto(view, response->add_waiters());
          for (const core::PoolUse& use : holders.counts.pools) ToProto(use, response->add_pools());
          response->set_waiting_requests(holders.counts.waiting_requests);
          response->set_next_page_token(NextPageToken(holders.permits));
        });
  }

  grpc::ServerUnaryReactor* ExplainWait(grpc::CallbackServerContext* context, const v1::ExplainWaitRequest* request,
                                        v1::WaitExplanation* response) override {
    return ServeLook(
        context_, context,
        [&](const core::Core& core, const core::Caller& caller) {
          return core.ExplainWait(caller, request->waiter());
        },
        [&](const core::WaitView& view) { ToProto(view, response); });
  }

 private:
  const ServiceContext context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakePermitService(const ServiceContext& context) {
  return std::make_unique<PermitService>(context);
}

// ---- PlanService: plans --------------------------------------------------------------------------------------

namespace {

class PlanService final : public v1::PlanService::CallbackService {
 public:
  explicit PlanService(ServiceContext context) : context_(context) { SetMessageAllocatorFor_MakePlan(&messages_); }

  grpc::ServerUnaryReactor* MakePlan(grpc::CallbackServerContext* context, const v1::MakePlanRequest* request,
                                     v1::PlanChange* response) override {
    return SubmitRequest<core::PlanRequest>(context_, context, *request, response);
  }

  grpc::ServerUnaryReactor* Replan(grpc::CallbackServerContext* context, const v1::ReplanRequest* request,
                                   v1::PlanChange* response) override {
    return SubmitRequest<core::ReplanRequest>(context_, context, *request, response);
  }

  grpc::ServerUnaryReactor* ReleasePlan(grpc::CallbackServerContext* context, const v1::ReleasePlanRequest* request,
                                        v1::ReleasePlanResponse* response) override {
    return SubmitRequest<PlanId>(context_, context, *request, response);
  }

  grpc::ServerUnaryReactor* GetPlan(grpc::CallbackServerContext* context, const v1::GetPlanRequest* request,
                                    v1::Plan* response) override {
    return ServeLook(
        context_, context,
        [&](const core::Core& core, const core::Caller& caller) {
          return core.GetPlan(caller, PlanId(request->plan()));
        },
        [&](const core::PlanView& view) { ToProto(view, response); });
  }

  grpc::ServerUnaryReactor* ListPlans(grpc::CallbackServerContext* context, const v1::ListPlansRequest* request,
                                      v1::ListPlansResponse* response) override {
    return ServePage(
        context_, context, *request, response,
        [](const core::Core& core, const core::Caller& caller, const core::PageRequest& page) {
          return core.ListPlans(caller, page);
        },
        [&](const core::PlanView& view) { ToProto(view, response->add_plans()); });
  }

 private:
  const ServiceContext context_;
  ArenaAllocator<v1::MakePlanRequest, v1::PlanChange> messages_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakePlanService(const ServiceContext& context) {
  return std::make_unique<PlanService>(context);
}

}  // namespace berth::service
