// PlanService: the shim of plans. Thread-safe.

#ifndef DAEMON_SERVICE_PLAN_SERVICE_H_
#define DAEMON_SERVICE_PLAN_SERVICE_H_

#include "berth/v1/plan.grpc.pb.h"
#include "daemon/service/arena_allocator.h"
#include "daemon/service/services.h"

namespace berth::service {

class PlanService final : public v1::PlanService::CallbackService {
 public:
  explicit PlanService(ServiceContext context) : context_(context) { SetMessageAllocatorFor_MakePlan(&messages_); }
  grpc::ServerUnaryReactor* MakePlan(grpc::CallbackServerContext*, const v1::MakePlanRequest*,
                                     v1::PlanChange*) override;
  grpc::ServerUnaryReactor* Replan(grpc::CallbackServerContext*, const v1::ReplanRequest*,
                                   v1::PlanChange*) override;
  grpc::ServerUnaryReactor* ReleasePlan(grpc::CallbackServerContext*, const v1::ReleasePlanRequest*,
                                        v1::ReleasePlanResponse*) override;
  grpc::ServerUnaryReactor* GetPlan(grpc::CallbackServerContext*, const v1::GetPlanRequest*,
                                    v1::Plan*) override;
  grpc::ServerUnaryReactor* ListPlans(grpc::CallbackServerContext*, const v1::ListPlansRequest*,
                                      v1::ListPlansResponse*) override;

 private:
  const ServiceContext context_;
  ArenaAllocator<v1::MakePlanRequest, v1::PlanChange> messages_;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_PLAN_SERVICE_H_
