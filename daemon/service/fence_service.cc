#include "daemon/service/fence_conversion.h"
#include "daemon/service/services.h"
#include "daemon/service/unary_call.h"

namespace berth::service {

grpc::ServerUnaryReactor* FenceService::OpenStream(grpc::CallbackServerContext* context,
                                                   const v1::OpenStreamRequest* request,
                                                   v1::OpenStreamResponse* response) {
  const core::OpenStreamRequest asked = {.device = request->device(),
                                         .default_stream = request->default_stream()};
  return SubmitRequest<core::OpenStreamResult>(
      context_, context, request->request(),
      absl::StatusOr<core::OpenStreamRequest>(asked), response, &core::Core::OpenStream);
}

grpc::ServerUnaryReactor* FenceService::CloseStream(grpc::CallbackServerContext* context,
                                                    const v1::CloseStreamRequest* request,
                                                    v1::CloseStreamResponse* response) {
  const core::CloseStreamRequest asked = {.slot = request->slot()};
  return SubmitRequest<core::CloseStreamResult>(
      context_, context, request->request(),
      absl::StatusOr<core::CloseStreamRequest>(asked), response, &core::Core::CloseStream);
}

grpc::ServerUnaryReactor* FenceService::PrepareUse(grpc::CallbackServerContext* context,
                                                   const v1::PrepareUseRequest* request,
                                                   v1::PrepareUseResponse* response) {
  return SubmitRequest<core::Prepared>(context_, context, request->request(),
                                       FromProto(*request), response, &core::Core::PrepareUse);
}

grpc::ServerUnaryReactor* FenceService::FinishUse(grpc::CallbackServerContext* context,
                                                  const v1::FinishUseRequest* request,
                                                  v1::FinishUseResponse* response) {
  const core::FinishUseRequest asked = {.use = UseId(request->use()), .value = request->value()};
  return SubmitRequest<core::FinishUseResult>(context_, context, request->request(),
                                              absl::StatusOr<core::FinishUseRequest>(asked), response,
                                              &core::Core::FinishUse);
}

grpc::ServerUnaryReactor* FenceService::AbandonUse(grpc::CallbackServerContext* context,
                                                   const v1::AbandonUseRequest* request,
                                                   v1::AbandonUseResponse* response) {
  const core::AbandonUseRequest asked = {.use = UseId(request->use())};
  return SubmitRequest<core::AbandonUseResult>(
      context_, context, request->request(),
      absl::StatusOr<core::AbandonUseRequest>(asked), response, &core::Core::AbandonUse);
}

grpc::ServerUnaryReactor* FenceService::ClearTorn(grpc::CallbackServerContext* context,
                                                  const v1::ClearTornRequest* request, v1::Block* response) {
  const absl::StatusOr<core::Caller> caller = context_.callers->Identify(*context);
  if (!caller.ok()) return FinishRefused(context_, context, "clear_torn", caller, caller.status());
  absl::StatusOr<core::BlockView> view;
  context_.broker->Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    view = core.ClearTorn(now, *caller, BlockId(request->block()), effects);
  });
  if (view.ok()) ToProto(*view, response);
  return FinishDecided(
      context_, context,
      {.what = "clear_torn", .facts = {{"block", AuditId(request->block())}}, .caller = *caller}, view.status());
}

grpc::ServerUnaryReactor* FenceService::ListStreams(grpc::CallbackServerContext* context,
                                                    const v1::ListStreamsRequest* request,
                                                    v1::ListStreamsResponse* response) {
  return ServePage(
      context_, context, *request, response,
      [](const core::Core& core, const core::Caller& caller, const core::PageRequest& page) {
        return core.ListStreams(caller, page);
      },
      [&](const core::StreamView& view) { ToProto(view, response->add_streams()); });
}

}  // namespace berth::service
