// The services that look at the node, and the operator's.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/label.h"
#include "daemon/service/device_conversion.h"
#include "daemon/service/memory_conversion.h"
#include "daemon/service/permit_conversion.h"
#include "daemon/service/services.h"
#include "daemon/service/unary_call.h"

namespace berth::service {
namespace {

// The caller, if it came in on admin.sock with a session that is known.
absl::StatusOr<core::Caller> IdentifyAdmin(const ServiceContext& context,
                                           const grpc::CallbackServerContext& call, absl::string_view verb) {
  absl::StatusOr<core::Caller> caller = context.callers->Identify(call);
  if (!caller.ok()) return caller;
  const absl::Status known =
      context.broker->Read([&](const core::Core& core) { return core.Authenticate(*caller); });
  if (!known.ok()) return known;
  if (!caller->admin)
    return Refuse(Reason::kAdminOnly, "{verb} is served on admin.sock only", {{"verb", verb}});
  return caller;
}

// Serves an operator's verb on one device: `operate(core, now, effects)` does it and says what the device is then.
template <typename Act>
grpc::ServerUnaryReactor* OperateDevice(const ServiceContext& context, grpc::CallbackServerContext* call,
                                        absl::string_view verb, v1::Device* response, Act operate) {
  if (const auto admin = IdentifyAdmin(context, *call, verb); !admin.ok()) {
    return FinishNow(call, admin.status());
  }
  absl::StatusOr<core::DeviceView> view;
  context.broker->Step(
      [&](core::Core& core, absl::Time now, core::Effects* effects) { view = operate(core, now, effects); });
  if (view.ok()) ToProto(*view, response);
  return FinishNow(call, view.status());
}

// Answers OK, and does something once the answer has left.
class AnswerFirst final : public grpc::ServerUnaryReactor {
 public:
  explicit AnswerFirst(std::function<void()> then) : then_(std::move(then)) { Finish(grpc::Status::OK); }
  void OnDone() override {
    then_();
    delete this;
  }

 private:
  const std::function<void()> then_;
};

}  // namespace

grpc::ServerUnaryReactor* DeviceService::ListDevices(grpc::CallbackServerContext* context,
                                                     const v1::ListDevicesRequest*,
                                                     v1::ListDevicesResponse* response) {
  return ServeLook(
      *context_.callers, context_.broker, context,
      [](const core::Core& core, const core::Caller&) {
        return absl::StatusOr<std::vector<core::DeviceView>>(core.ListDevices());
      },
      [&](const std::vector<core::DeviceView>& views) {
        for (const core::DeviceView& view : views) ToProto(view, response->add_devices());
      });
}

grpc::ServerWriteReactor<v1::WatchDevicesResponse>* DeviceService::WatchDevices(
    grpc::CallbackServerContext* context, const v1::WatchDevicesRequest*) {
  return watches_.Start(*context, context_.callers->Identify(*context));
}

grpc::ServerUnaryReactor* NodeService::GetNode(grpc::CallbackServerContext* context,
                                               const v1::GetNodeRequest*, v1::Node* response) {
  *response = node_;
  response->set_unwritten_log_records(log_.unwritten());
  response->set_upgrading(page_.upgrading != 0);
  response->set_ledger_fault(std::string(broker_.CheckServes().message()));
  return FinishNow(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* AdminService::SetPool(grpc::CallbackServerContext* context,
                                                const v1::SetPoolRequest* request, v1::Pool* response) {
  if (const auto admin = IdentifyAdmin(context_, *context, "SetPool"); !admin.ok()) {
    return FinishNow(context, admin.status());
  }
  const absl::StatusOr<core::PoolChange> change = FromProto(*request);
  if (!change.ok()) return FinishNow(context, change.status());
  absl::StatusOr<core::PoolView> view;
  context_.broker->Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    view = core.SetPool(now, PoolName(request->pool()), *change, effects);
  });
  if (view.ok()) ToProto(*view, response);
  return FinishNow(context, view.status());
}

grpc::ServerUnaryReactor* AdminService::GetConfig(grpc::CallbackServerContext* context,
                                                  const v1::GetConfigRequest*, v1::Config* response) {
  if (const auto admin = IdentifyAdmin(context_, *context, "GetConfig"); !admin.ok()) {
    return FinishNow(context, admin.status());
  }
  for (const ConfigValue& value : config_.Describe()) {
    v1::ConfigValue* const to = response->add_values();
    to->set_key(value.key);
    to->set_value(value.value);
    to->set_source(static_cast<v1::ConfigValue::Source>(value.origin));
    to->set_where(value.where);
    to->set_while_running(value.while_running);
    to->set_pending(value.pending);
  }
  return FinishNow(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* AdminService::ReloadConfig(grpc::CallbackServerContext* context,
                                                     const v1::ReloadConfigRequest*,
                                                     v1::ReloadConfigResponse* response) {
  if (const auto admin = IdentifyAdmin(context_, *context, "ReloadConfig"); !admin.ok()) {
    return FinishNow(context, admin.status());
  }
  const absl::StatusOr<std::vector<ConfigChange>> changes = config_.Reload();
  if (!changes.ok()) return FinishNow(context, changes.status());
  for (const ConfigChange& change : *changes) {
    v1::ReloadConfigResponse::Change* const to = response->add_changes();
    to->set_key(change.key);
    to->set_from(change.from);
    to->set_to(change.to);
    to->set_why_not(change.why_not);
  }
  return FinishNow(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* AdminService::RevokePermit(grpc::CallbackServerContext* context,
                                                     const v1::RevokePermitRequest* request,
                                                     v1::Permit* response) {
  if (const auto admin = IdentifyAdmin(context_, *context, "RevokePermit"); !admin.ok()) {
    return FinishNow(context, admin.status());
  }
  absl::StatusOr<core::PermitView> view;
  context_.broker->Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    view = core.RevokePermit(now, PermitId(request->permit()), effects);
  });
  if (view.ok()) ToProto(*view, response);
  return FinishNow(context, view.status());
}

grpc::ServerUnaryReactor* AdminService::ReapBlocks(grpc::CallbackServerContext* context,
                                                   const v1::ReapBlocksRequest*,
                                                   v1::ReapBlocksResponse* response) {
  const absl::StatusOr<core::Caller> caller = context_.callers->Identify(*context);
  if (!caller.ok()) return FinishNow(context, caller.status());
  return PendingCall<core::ReapResult, v1::ReapBlocksResponse>::Submit(
      context_.broker, context, response,
      [&](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
        core.Reap(now, id, *caller, effects);
      });
}

grpc::ServerUnaryReactor* AdminService::EnableDevice(grpc::CallbackServerContext* context,
                                                     const v1::EnableDeviceRequest* request,
                                                     v1::Device* response) {
  return OperateDevice(context_, context, "EnableDevice", response,
                       [&](core::Core& core, absl::Time now, core::Effects* effects) {
                         return core.EnableDevice(now, request->device(), effects);
                       });
}

grpc::ServerUnaryReactor* AdminService::RestartDevice(grpc::CallbackServerContext* context,
                                                      const v1::RestartDeviceRequest* request,
                                                      v1::Device* response) {
  return OperateDevice(context_, context, "RestartDevice", response,
                       [&](core::Core& core, absl::Time now, core::Effects* effects) {
                         return request->context_worker()
                                    ? core.RestartContext(now, request->device(), effects)
                                    : core.RestartDevice(now, request->device(), effects);
                       });
}

grpc::ServerUnaryReactor* AdminService::ResetDevice(grpc::CallbackServerContext* context,
                                                    const v1::ResetDeviceRequest* request,
                                                    v1::Device* response) {
  return OperateDevice(context_, context, "ResetDevice", response,
                       [&](core::Core& core, absl::Time now, core::Effects* effects) {
                         return core.ResetDevice(now, request->device(), effects);
                       });
}

grpc::ServerUnaryReactor* AdminService::DropDevice(grpc::CallbackServerContext* context,
                                                   const v1::DropDeviceRequest* request,
                                                   v1::Device* response) {
  return OperateDevice(context_, context, "DropDevice", response,
                       [&](core::Core& core, absl::Time now, core::Effects* effects) {
                         return core.DropDevice(now, request->device(), effects);
                       });
}

grpc::ServerUnaryReactor* AdminService::DrainDevice(grpc::CallbackServerContext* context,
                                                    const v1::DrainDeviceRequest* request,
                                                    v1::Device* response) {
  return OperateDevice(context_, context, "DrainDevice", response,
                       [&](core::Core& core, absl::Time now, core::Effects* effects) {
                         return core.DrainDevice(now, request->device(), request->reason(), effects);
                       });
}

grpc::ServerUnaryReactor* AdminService::UndrainDevice(grpc::CallbackServerContext* context,
                                                      const v1::UndrainDeviceRequest* request,
                                                      v1::Device* response) {
  return OperateDevice(context_, context, "UndrainDevice", response,
                       [&](core::Core& core, absl::Time now, core::Effects* effects) {
                         return core.UndrainDevice(now, request->device(), effects);
                       });
}

grpc::ServerUnaryReactor* AdminService::ResetNode(grpc::CallbackServerContext* context,
                                                  const v1::ResetNodeRequest*, v1::ResetNodeResponse*) {
  if (const auto admin = IdentifyAdmin(context_, *context, "ResetNode"); !admin.ok()) {
    return FinishNow(context, admin.status());
  }
  return new AnswerFirst(reset_);
}

grpc::ServerUnaryReactor* AdminService::UpgradeNode(grpc::CallbackServerContext* context,
                                                    const v1::UpgradeNodeRequest*, v1::UpgradeNodeResponse*) {
  if (const auto admin = IdentifyAdmin(context_, *context, "UpgradeNode"); !admin.ok()) {
    return FinishNow(context, admin.status());
  }
  return new AnswerFirst(upgrade_);
}

}  // namespace berth::service
