// ModuleService: the cache of compiled modules.

#include <memory>

#include "berth/v1/module.grpc.pb.h"
#include "common/status_macros.h"
#include "daemon/service/conversion/module_conversion.h"
#include "daemon/service/conversion/page.h"
#include "daemon/service/rpc/module_requests.h"
#include "daemon/service/rpc/services.h"
#include "daemon/service/rpc/unary_call.h"

namespace berth::service {
namespace {

// A page of modules, and the cache's metrics.
struct ModuleList {
  core::Page<core::ModuleView> modules;
  core::ModuleUsage usage;
};

class ModuleService final : public v1::ModuleService::CallbackService {
 public:
  explicit ModuleService(ServiceContext context) : context_(context) {}

  grpc::ServerUnaryReactor* ObtainModule(grpc::CallbackServerContext* context, const v1::ObtainModuleRequest* request,
                                         v1::ObtainModuleResponse* response) override {
    return SubmitRequest<core::ObtainModuleRequest>(context_, context, *request, response);
  }

  grpc::ServerUnaryReactor* StoreModule(grpc::CallbackServerContext* context, const v1::StoreModuleRequest* request,
                                        v1::StoreModuleResponse* response) override {
    return SubmitRequest<core::StoreModuleRequest>(context_, context, *request, response);
  }

  grpc::ServerUnaryReactor* AbandonModule(grpc::CallbackServerContext* context,
                                          const v1::AbandonModuleRequest* request,
                                          v1::AbandonModuleResponse* response) override {
    return SubmitRequest<core::AbandonModuleRequest>(context_, context, *request, response);
  }

  grpc::ServerUnaryReactor* ListModules(grpc::CallbackServerContext* context, const v1::ListModulesRequest* request,
                                        v1::ListModulesResponse* response) override {
    const absl::StatusOr<core::PageRequest> page = ReadPage(request->page_size(), request->page_token());
    return ServeLook(
        context_, context,
        [&](const core::Core& core, const core::Caller& caller) -> absl::StatusOr<ModuleList> {
          BERTH_RETURN_IF_ERROR(page.status());
          return ModuleList{.modules = core.ListModules(caller, *page), .usage = core.GetModuleUsage(caller)};
        },
        [&](const ModuleList& list) {
          for (const core::ModuleView& view : list.modules) ToProto(view, response->add_modules());
          ToProto(list.usage, response->mutable_usage());
          response->set_next_page_token(NextPageToken(list.modules));
        });
  }

 private:
  const ServiceContext context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeModuleService(const ServiceContext& context) {
  return std::make_unique<ModuleService>(context);
}

}  // namespace berth::service
