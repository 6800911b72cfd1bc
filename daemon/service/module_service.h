// ModuleService: the cache of compiled modules, as a thin shim over the core.

#ifndef DAEMON_SERVICE_MODULE_SERVICE_H_
#define DAEMON_SERVICE_MODULE_SERVICE_H_

#include "berth/v1/module.grpc.pb.h"
#include "daemon/service/services.h"

namespace berth::service {

// Thread-safe.
class ModuleService final : public v1::ModuleService::CallbackService {
 public:
  explicit ModuleService(ServiceContext context) : context_(context) {}
  grpc::ServerUnaryReactor* ObtainModule(grpc::CallbackServerContext*, const v1::ObtainModuleRequest*,
                                         v1::ObtainModuleResponse*) override;
  grpc::ServerUnaryReactor* StoreModule(grpc::CallbackServerContext*, const v1::StoreModuleRequest*,
                                        v1::StoreModuleResponse*) override;
  grpc::ServerUnaryReactor* AbandonModule(grpc::CallbackServerContext*, const v1::AbandonModuleRequest*,
                                          v1::AbandonModuleResponse*) override;
  grpc::ServerUnaryReactor* ListModules(grpc::CallbackServerContext*, const v1::ListModulesRequest*,
                                        v1::ListModulesResponse*) override;

 private:
  const ServiceContext context_;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_MODULE_SERVICE_H_
