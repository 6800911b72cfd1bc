// FenceService: streams, and the uses of blocks on them.

#include <memory>

#include "absl/strings/str_cat.h"
#include "berth/v1/fence.grpc.pb.h"
#include "berth/v1/resources.pb.h"
#include "daemon/service/conversion/fence_conversion.h"
#include "daemon/service/conversion/memory_conversion.h"
#include "daemon/service/rpc/fence_requests.h"
#include "daemon/service/rpc/services.h"
#include "daemon/service/rpc/unary_call.h"

namespace berth::service {
namespace {

class FenceService final : public v1::FenceService::CallbackService {
 public:
  explicit FenceService(ServiceContext context) : context_(context) {}

  grpc::ServerUnaryReactor* OpenStream(grpc::CallbackServerContext* context, const v1::OpenStreamRequest* request,
                                       v1::OpenStreamResponse* response) override {
    return SubmitRequest<core::OpenStreamRequest>(context_, context, *request, response);
  }

  grpc::ServerUnaryReactor* CloseStream(grpc::CallbackServerContext* context, const v1::CloseStreamRequest* request,
                                        v1::CloseStreamResponse* response) override {
    return SubmitRequest<core::CloseStreamRequest>(context_, context, *request, response);
  }

  grpc::ServerUnaryReactor* PrepareUse(grpc::CallbackServerContext* context, const v1::PrepareUseRequest* request,
                                       v1::PrepareUseResponse* response) override {
    return SubmitRequest<core::PrepareUseRequest>(context_, context, *request, response);
  }

  grpc::ServerUnaryReactor* FinishUse(grpc::CallbackServerContext* context, const v1::FinishUseRequest* request,
                                      v1::FinishUseResponse* response) override {
    return SubmitRequest<core::FinishUseRequest>(context_, context, *request, response);
  }

  grpc::ServerUnaryReactor* AbandonUse(grpc::CallbackServerContext* context, const v1::AbandonUseRequest* request,
                                       v1::AbandonUseResponse* response) override {
    return SubmitRequest<core::AbandonUseRequest>(context_, context, *request, response);
  }

  grpc::ServerUnaryReactor* ClearTorn(grpc::CallbackServerContext* context, const v1::ClearTornRequest* request,
                                      v1::Block* response) override {
    const absl::StatusOr<core::Caller> caller = context_.callers->Identify(*context);
    if (!caller.ok()) return FinishRefused(context_, context, "clear_torn", caller, caller.status());
    absl::StatusOr<core::BlockView> view;
    context_.broker->Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
      view = core.ClearTorn(now, *caller, BlockId(request->block()), effects);
    });
    if (view.ok()) ToProto(*view, response);
    return FinishDecided(
        context_, context,
        {.what = "clear_torn", .facts = {{"block", absl::StrCat(request->block())}}, .caller = *caller}, view.status());
  }

  grpc::ServerUnaryReactor* ListStreams(grpc::CallbackServerContext* context, const v1::ListStreamsRequest* request,
                                        v1::ListStreamsResponse* response) override {
    return ServePage(
        context_, context, *request, response,
        [](const core::Core& core, const core::Caller& caller, const core::PageRequest& page) {
          return core.ListStreams(caller, page);
        },
        [&](const core::StreamView& view) { ToProto(view, response->add_streams()); });
  }

 private:
  const ServiceContext context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeFenceService(const ServiceContext& context) {
  return std::make_unique<FenceService>(context);
}

}  // namespace berth::service
