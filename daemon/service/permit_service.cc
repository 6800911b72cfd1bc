#include <vector>

#include "common/label.h"
#include "daemon/broker/event_loop.h"
#include "daemon/service/page.h"
#include "daemon/service/services.h"
#include "daemon/service/unary_call.h"

namespace berth::service {

grpc::ServerUnaryReactor* PermitService::AcquirePermit(grpc::CallbackServerContext* context,
                                                       const v1::AcquirePermitRequest* request,
                                                       v1::AcquirePermitResponse* response) {
  return SubmitRequest<core::AcquireResult>(*context_.callers, context_.broker, context, request->request(),
                                            FromProto(*request, EventLoop::SteadyNow()), response,
                                            &core::Core::Acquire);
}

grpc::ServerUnaryReactor* PermitService::ReleasePermit(grpc::CallbackServerContext* context,
                                                       const v1::ReleasePermitRequest* request,
                                                       v1::ReleasePermitResponse* response) {
  return SubmitRequest<core::ReleaseResult>(
      *context_.callers, context_.broker, context, request->request(),
      absl::StatusOr<AcquisitionId>(AcquisitionId(request->acquisition())), response, &core::Core::Release);
}

grpc::ServerUnaryReactor* PermitService::GetPool(grpc::CallbackServerContext* context,
                                                 const v1::GetPoolRequest* request, v1::Pool* response) {
  return ServeLook(*context_.callers, context_.broker, context,
                   [&](const core::Core& core, const core::Caller&) {
                     if (const absl::Status valid = ValidateLabel("pool", request->pool()); !valid.ok())
                       return valid;
                     const absl::StatusOr<core::PoolView> view = core.GetPool(PoolName(request->pool()));
                     if (view.ok()) ToProto(*view, response);
                     return view.status();
                   });
}

grpc::ServerUnaryReactor* PermitService::ListPools(grpc::CallbackServerContext* context,
                                                   const v1::ListPoolsRequest* request,
                                                   v1::ListPoolsResponse* response) {
  return ServeLook(*context_.callers, context_.broker, context,
                   [&](const core::Core& core, const core::Caller&) {
                     return EmitPage(
                         core.ListPools(), request->page_size(), request->page_token(),
                         [](const core::PoolView& view) { return view.name; },
                         [&](const core::PoolView& view) { ToProto(view, response->add_pools()); },
                         response->mutable_next_page_token());
                   });
}

grpc::ServerUnaryReactor* PermitService::ListPermits(grpc::CallbackServerContext* context,
                                                     const v1::ListPermitsRequest* request,
                                                     v1::ListPermitsResponse* response) {
  return ServeLook(
      *context_.callers, context_.broker, context, [&](const core::Core& core, const core::Caller& caller) {
        if (request->page_token().empty()) {
          for (const core::WaiterView& view : core.ListWaiters(caller, request->pool())) {
            if (response->waiters_size() == kMaxPageSize) break;
            ToProto(view, response->add_waiters());
          }
        }
        return EmitPage(
            core.ListPermits(caller, request->pool()), request->page_size(), request->page_token(),
            [](const core::PermitView& view) { return SortableKey(view.id.value()); },
            [&](const core::PermitView& view) { ToProto(view, response->add_permits()); },
            response->mutable_next_page_token());
      });
}

}  // namespace berth::service
