#include <vector>

#include "common/label.h"
#include "common/status_macros.h"
#include "daemon/broker/event_loop.h"
#include "daemon/service/page.h"
#include "daemon/service/permit_conversion.h"
#include "daemon/service/services.h"
#include "daemon/service/unary_call.h"

namespace berth::service {
namespace {

// Who has permits and, with the first page, who waits for one.
struct Holders {
  core::Page<core::PermitView> permits;
  std::vector<core::WaiterView> waiters;
};

}  // namespace

grpc::ServerUnaryReactor* PermitService::AcquirePermit(grpc::CallbackServerContext* context,
                                                       const v1::AcquirePermitRequest* request,
                                                       v1::AcquirePermitResponse* response) {
  return SubmitRequest<core::AcquireResult>(context_, context, request->request(),
                                            FromProto(*request, EventLoop::SteadyNow()), response,
                                            &core::Core::Acquire);
}

grpc::ServerUnaryReactor* PermitService::AcquireGang(grpc::CallbackServerContext* context,
                                                     const v1::AcquireGangRequest* request,
                                                     v1::AcquireGangResponse* response) {
  return SubmitRequest<core::GangResult>(context_, context, request->request(),
                                         FromProto(*request, EventLoop::SteadyNow()), response,
                                         &core::Core::AcquireGang);
}

grpc::ServerUnaryReactor* PermitService::ReleasePermit(grpc::CallbackServerContext* context,
                                                       const v1::ReleasePermitRequest* request,
                                                       v1::ReleasePermitResponse* response) {
  if (request->if_idle()) {
    return SubmitRequest<core::ReleaseResult>(
        context_, context, request->request(),
        absl::StatusOr<core::ReleaseIfIdleRequest>({.acquisition = AcquisitionId(request->acquisition())}),
        response, &core::Core::ReleaseIfIdle);
  }
  return SubmitRequest<core::ReleaseResult>(
      context_, context, request->request(),
      absl::StatusOr<AcquisitionId>(AcquisitionId(request->acquisition())), response, &core::Core::Release);
}

grpc::ServerUnaryReactor* PermitService::KeepPermits(grpc::CallbackServerContext* context,
                                                     const v1::KeepPermitsRequest* request,
                                                     v1::KeepPermitsResponse* response) {
  return SubmitRequest<core::KeepPermitsResult>(
      context_, context, request->request(),
      absl::StatusOr<core::KeepPermitsRequest>(core::KeepPermitsRequest()), response,
      &core::Core::KeepPermits);
}

grpc::ServerUnaryReactor* PermitService::ListStrays(grpc::CallbackServerContext* context,
                                                    const v1::ListStraysRequest*,
                                                    v1::ListStraysResponse* response) {
  return ServeLook(
      context_, context,
      [](const core::Core& core, const core::Caller& caller) -> absl::StatusOr<std::vector<core::StrayView>> {
        return core.ListStrays(caller);
      },
      [&](const std::vector<core::StrayView>& strays) {
        for (const core::StrayView& stray : strays) ToProto(stray, response->add_strays());
      });
}

grpc::ServerUnaryReactor* PermitService::GetPool(grpc::CallbackServerContext* context,
                                                 const v1::GetPoolRequest* request, v1::Pool* response) {
  return ServeLook(
      context_, context,
      [&](const core::Core& core, const core::Caller&) -> absl::StatusOr<core::PoolView> {
        BERTH_RETURN_IF_ERROR(ValidateLabel("pool", request->pool()));
        return core.GetPool(PoolName(request->pool()));
      },
      [&](const core::PoolView& view) { ToProto(view, response); });
}

grpc::ServerUnaryReactor* PermitService::ListPools(grpc::CallbackServerContext* context,
                                                   const v1::ListPoolsRequest* request,
                                                   v1::ListPoolsResponse* response) {
  return ServePage(
      context_, context, *request, response,
      [](const core::Core& core, const core::Caller&, const core::PageRequest& page) {
        return core.ListPools(page);
      },
      [&](const core::PoolView& view) { ToProto(view, response->add_pools()); });
}

grpc::ServerUnaryReactor* PermitService::ListPermits(grpc::CallbackServerContext* context,
                                                     const v1::ListPermitsRequest* request,
                                                     v1::ListPermitsResponse* response) {
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
        if (page->after == 0) holders.waiters = core.ListWaiters(caller, request->pool(), kMaxPageSize);
        return holders;
      },
      [&](const Holders& holders) {
        for (const core::PermitView& view : holders.permits) ToProto(view, response->add_permits());
        for (const core::WaiterView& view : holders.waiters) ToProto(view, response->add_waiters());
        response->set_next_page_token(NextPageToken(holders.permits));
      });
}

grpc::ServerUnaryReactor* PermitService::ExplainWait(grpc::CallbackServerContext* context,
                                                     const v1::ExplainWaitRequest* request,
                                                     v1::WaitExplanation* response) {
  return ServeLook(
      context_, context,
      [&](const core::Core& core, const core::Caller& caller) {
        return core.ExplainWait(caller, request->waiter());
      },
      [&](const core::WaitView& view) { ToProto(view, response); });
}

}  // namespace berth::service
