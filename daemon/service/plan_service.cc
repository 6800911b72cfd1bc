#include "daemon/service/plan_service.h"

#include "daemon/broker/event_loop.h"
#include "daemon/service/page.h"
#include "daemon/service/plan_conversion.h"
#include "daemon/service/unary_call.h"

namespace berth::service {

grpc::ServerUnaryReactor* PlanService::MakePlan(grpc::CallbackServerContext* context,
                                                const v1::MakePlanRequest* request,
                                                v1::PlanChange* response) {
  return SubmitRequest<core::PlanResult>(context_, context, request->request(),
                                         FromProto(*request, EventLoop::SteadyNow()), response,
                                         &core::Core::MakePlan);
}

grpc::ServerUnaryReactor* PlanService::Replan(grpc::CallbackServerContext* context,
                                              const v1::ReplanRequest* request, v1::PlanChange* response) {
  return SubmitRequest<core::PlanResult>(
      context_, context, request->request(),
      absl::StatusOr<core::ReplanRequest>({.plan = PlanId(request->plan()), .reweigh = request->reweigh()}),
      response, &core::Core::Replan);
}

grpc::ServerUnaryReactor* PlanService::ReleasePlan(grpc::CallbackServerContext* context,
                                                   const v1::ReleasePlanRequest* request,
                                                   v1::ReleasePlanResponse* response) {
  return SubmitRequest<core::ReleasePlanResult>(
      context_, context, request->request(),
      absl::StatusOr<PlanId>(PlanId(request->plan())), response, &core::Core::ReleasePlan);
}

grpc::ServerUnaryReactor* PlanService::GetPlan(grpc::CallbackServerContext* context,
                                               const v1::GetPlanRequest* request, v1::Plan* response) {
  return ServeLook(
      context_, context,
      [&](const core::Core& core, const core::Caller& caller) {
        return core.GetPlan(caller, PlanId(request->plan()));
      },
      [&](const core::PlanView& view) { ToProto(view, response); });
}

grpc::ServerUnaryReactor* PlanService::ListPlans(grpc::CallbackServerContext* context,
                                                 const v1::ListPlansRequest* request,
                                                 v1::ListPlansResponse* response) {
  return ServePage(
      context_, context, *request, response,
      [](const core::Core& core, const core::Caller& caller, const core::PageRequest& page) {
        return core.ListPlans(caller, page);
      },
      [&](const core::PlanView& view) { ToProto(view, response->add_plans()); });
}

}  // namespace berth::service
