#include "daemon/service/module_service.h"

#include "common/status_macros.h"
#include "daemon/broker/event_loop.h"
#include "daemon/service/module_conversion.h"
#include "daemon/service/page.h"
#include "daemon/service/unary_call.h"

namespace berth::service {
namespace {

// A page of modules, and the cache's figures beside it.
struct Kept {
  core::Page<core::ModuleView> modules;
  core::ModuleUsage usage;
};

}  // namespace

grpc::ServerUnaryReactor* ModuleService::ObtainModule(grpc::CallbackServerContext* context,
                                                      const v1::ObtainModuleRequest* request,
                                                      v1::ObtainModuleResponse* response) {
  return SubmitRequest<core::ObtainModuleResult>(
      context_, context, request->request(),
      FromProto(*request, EventLoop::SteadyNow()), response, &core::Core::ObtainModule);
}

grpc::ServerUnaryReactor* ModuleService::StoreModule(grpc::CallbackServerContext* context,
                                                     const v1::StoreModuleRequest* request,
                                                     v1::StoreModuleResponse* response) {
  return SubmitRequest<core::StoreModuleResult>(context_, context,
                                                request->request(), FromProto(*request), response,
                                                &core::Core::StoreModule);
}

grpc::ServerUnaryReactor* ModuleService::AbandonModule(grpc::CallbackServerContext* context,
                                                       const v1::AbandonModuleRequest* request,
                                                       v1::AbandonModuleResponse* response) {
  return SubmitRequest<core::AbandonModuleResult>(context_, context,
                                                  request->request(), FromProto(*request), response,
                                                  &core::Core::AbandonModule);
}

grpc::ServerUnaryReactor* ModuleService::ListModules(grpc::CallbackServerContext* context,
                                                     const v1::ListModulesRequest* request,
                                                     v1::ListModulesResponse* response) {
  const absl::StatusOr<core::PageRequest> page = ReadPage(request->page_size(), request->page_token());
  return ServeLook(
      context_, context,
      [&](const core::Core& core, const core::Caller& caller) -> absl::StatusOr<Kept> {
        BERTH_RETURN_IF_ERROR(page.status());
        return Kept{.modules = core.ListModules(caller, *page), .usage = core.GetModuleUsage(caller)};
      },
      [&](const Kept& kept) {
        for (const core::ModuleView& view : kept.modules) ToProto(view, response->add_modules());
        ToProto(kept.usage, response->mutable_usage());
        response->set_next_page_token(NextPageToken(kept.modules));
      });
}

}  // namespace berth::service
