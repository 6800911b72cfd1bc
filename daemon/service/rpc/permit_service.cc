// PermitService: permits and pools.

#include <memory>
#include <vector>

#include "berth/v1/permit.grpc.pb.h"
#include "common/label.h"
#include "common/status_macros.h"
#include "daemon/service/conversion/page.h"
#include "daemon/service/conversion/permit_conversion.h"
#include "daemon/service/rpc/permit_requests.h"
#include "daemon/service/rpc/services.h"
#include "daemon/service/rpc/unary_call.h"

namespace berth::service {
namespace {

// The permits and, with the first page, the waiters.
struct Holders {
  core::Page<core::PermitView> permits;
  std::vector<core::WaiterView> waiters;
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
          if (page->after == 0) holders.waiters = core.ListWaiters(caller, request->pool(), kMaxPageSize);
          return holders;
        },
        [&](const Holders& holders) {
          for (const core::PermitView& view : holders.permits) ToProto(view, response->add_permits());
          MarkStopped(response->mutable_permits());
          for (const core::WaiterView& view : holders.waiters) ToProto(view, response->add_waiters());
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

}  // namespace berth::service
