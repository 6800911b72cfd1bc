// PlanService: plans.

#include <memory>

#include "berth/v1/plan.grpc.pb.h"
#include "daemon/service/conversion/plan_conversion.h"
#include "daemon/service/rpc/plan_requests.h"
#include "daemon/service/rpc/services.h"
#include "daemon/service/rpc/unary_call.h"
#include "daemon/service/transport/arena_allocator.h"

namespace berth::service {
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
