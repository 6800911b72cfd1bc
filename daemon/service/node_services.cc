// The services that look at the node, and the operator's.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/error.h"
#include "common/label.h"
#include "daemon/service/device_conversion.h"
#include "daemon/service/memory_conversion.h"
#include "daemon/service/permit_conversion.h"
#include "daemon/service/services.h"
#include "daemon/service/unary_call.h"

namespace berth::service {
namespace {

// An operator's verb: who asks for it, and what becomes of it, which is kept.
class Operation {
 public:
  Operation(const ServiceContext& context, grpc::CallbackServerContext* call, absl::string_view verb)
      : context_(context), call_(call) {
    const absl::StatusOr<core::Caller> caller = context.callers->Identify(*call);
    record_ = {.what = "operate", .facts = {{"verb", std::string(verb)}}, .caller = caller.value_or(core::Caller())};
    status_ = caller.status();
    if (!caller.ok()) return;
    status_ = context.broker->Read([&](const core::Core& core) { return core.Authenticate(*caller); });
    if (status_.ok() && !caller->admin) {
      status_ = Refuse(Reason::kAdminOnly, "{verb} is served on admin.sock only", {{"verb", verb}});
    }
  }

  // Not OK where it came in elsewhere, or without a session that is known: then that is to be its end.
  const absl::Status& status() const { return status_; }
  void Note(const char* name, std::string value) { record_.facts.emplace_back(name, std::move(value)); }
  grpc::ServerUnaryReactor* Finish(const absl::Status& status) {
    return FinishDecided(context_, call_, std::move(record_), status);
  }
  // Done, and has `reactor` finish.
  grpc::ServerUnaryReactor* FinishBy(grpc::ServerUnaryReactor* reactor) {
    KeepDecision(context_, *call_, std::move(record_));
    return reactor;
  }

 private:
  const ServiceContext& context_;
  grpc::CallbackServerContext* const call_;
  AuditRecord record_;
  absl::Status status_;
};

// Serves an operator's verb on one device: `operate(core, now, effects)` does it and says what the device is then.
template <typename Act>
grpc::ServerUnaryReactor* OperateDevice(Operation operation, uint32_t device, const ServiceContext& context,
                                        v1::Device* response, Act operate) {
  operation.Note("device", std::to_string(device));
  if (!operation.status().ok()) return operation.Finish(operation.status());
  absl::StatusOr<core::DeviceView> view;
  context.broker->Step(
      [&](core::Core& core, absl::Time now, core::Effects* effects) { view = operate(core, now, effects); });
  if (view.ok()) ToProto(*view, response);
  return operation.Finish(view.status());
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
      context_, context,
      [](const core::Core& core, const core::Caller&) {
        return absl::StatusOr<std::vector<core::DeviceView>>(core.ListDevices());
      },
      [&](const std::vector<core::DeviceView>& views) {
        for (const core::DeviceView& view : views) ToProto(view, response->add_devices());
      });
}

grpc::ServerWriteReactor<v1::WatchDevicesResponse>* DeviceService::WatchDevices(
    grpc::CallbackServerContext* context, const v1::WatchDevicesRequest* request) {
  const absl::StatusOr<core::Caller> caller = context_.callers->Identify(*context);
  AuditRecord record = {.what = "watch_devices", .outcome = caller.status(), .caller = caller.value_or(core::Caller())};
  const absl::StatusOr<std::shared_ptr<const Peer>> peer = context_.callers->FindPeer(*context);
  const bool of_operator = peer.ok() && (*peer)->role == Peer::Role::kAdmin;
  DeviceWatches::Reactor* const reactor =
      watches_.Start(context, caller, of_operator, request->resume_token(), &record.outcome);
  KeepDecision(context_, *context, std::move(record));
  return reactor;
}

grpc::ServerUnaryReactor* NodeService::GetNode(grpc::CallbackServerContext* context,
                                               const v1::GetNodeRequest*, v1::Node* response) {
  *response = node_;
  ToProto(serve_time_, response->mutable_serve_time());
  response->set_unwritten_log_records(log_.unwritten());
  response->set_unwritten_audit_records(audit_.unwritten());
  response->set_upgrading(page_.upgrading != 0);
  read_pressure_(response->mutable_pressure());
  response->set_ledger_fault(std::string(broker_.CheckServes().message()));
  return FinishNow(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* AdminService::SetPool(grpc::CallbackServerContext* context,
                                                const v1::SetPoolRequest* request, v1::Pool* response) {
  Operation operation(context_, context, "SetPool");
  if (!operation.status().ok()) return operation.Finish(operation.status());
  operation.Note("change", request->ShortDebugString());
  const absl::StatusOr<core::PoolChange> change = FromProto(*request);
  if (!change.ok()) return operation.Finish(change.status());
  absl::StatusOr<core::PoolView> view;
  context_.broker->Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    view = core.SetPool(now, PoolName(request->pool()), *change, effects);
  });
  if (view.ok()) ToProto(*view, response);
  return operation.Finish(view.status());
}

grpc::ServerUnaryReactor* AdminService::GetConfig(grpc::CallbackServerContext* context,
                                                  const v1::GetConfigRequest*, v1::Config* response) {
  const absl::StatusOr<core::Caller> caller = context_.callers->Identify(*context);
  if (!caller.ok() || !caller->observer) {
    Operation operation(context_, context, "GetConfig");
    if (!operation.status().ok()) return operation.Finish(operation.status());
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
  Operation operation(context_, context, "ReloadConfig");
  if (!operation.status().ok()) return operation.Finish(operation.status());
  const absl::StatusOr<std::vector<ConfigChange>> changes = config_.Reload();
  if (!changes.ok()) return operation.Finish(changes.status());
  for (const ConfigChange& change : *changes) {
    v1::ReloadConfigResponse::Change* const to = response->add_changes();
    to->set_key(change.key);
    to->set_from(change.from);
    to->set_to(change.to);
    to->set_why_not(change.why_not);
    if (!change.why_not.empty()) continue;
    operation.Note("change", absl::StrCat(change.key, ": ", change.from, " -> ", change.to));
  }
  return operation.Finish(absl::OkStatus());
}

grpc::ServerUnaryReactor* AdminService::RevokePermit(grpc::CallbackServerContext* context,
                                                     const v1::RevokePermitRequest* request,
                                                     v1::Permit* response) {
  Operation operation(context_, context, "RevokePermit");
  if (!operation.status().ok()) return operation.Finish(operation.status());
  absl::StatusOr<core::PermitView> view;
  context_.broker->Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    view = core.RevokePermit(now, PermitId(request->permit()), effects);
  });
  operation.Note("permit", std::to_string(request->permit()));
  if (view.ok()) {
    operation.Note("from_session", AuditId(view->session.value()));
    operation.Note("from_pid", std::to_string(view->process.pid));
    ToProto(*view, response);
  }
  return operation.Finish(view.status());
}

grpc::ServerUnaryReactor* AdminService::ReapBlocks(grpc::CallbackServerContext* context,
                                                   const v1::ReapBlocksRequest*,
                                                   v1::ReapBlocksResponse* response) {
  const absl::StatusOr<core::Caller> caller = context_.callers->Identify(*context);
  if (!caller.ok()) return FinishRefused(context_, context, "operate", caller, caller.status());
  return PendingCall<core::ReapResult, v1::ReapBlocksResponse>::Submit(
      context_, context, response,
      {.what = "operate", .facts = {{"verb", "ReapBlocks"}}, .caller = *caller},
      [&](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
        core.Reap(now, id, *caller, effects);
      });
}

grpc::ServerUnaryReactor* AdminService::EnableDevice(grpc::CallbackServerContext* context,
                                                     const v1::EnableDeviceRequest* request,
                                                     v1::Device* response) {
  return OperateDevice(Operation(context_, context, "EnableDevice"), request->device(), context_, response,
                       [&](core::Core& core, absl::Time now, core::Effects* effects) {
                         return core.EnableDevice(now, request->device(), effects);
                       });
}

grpc::ServerUnaryReactor* AdminService::RestartDevice(grpc::CallbackServerContext* context,
                                                      const v1::RestartDeviceRequest* request,
                                                      v1::Device* response) {
  return OperateDevice(Operation(context_, context, "RestartDevice"), request->device(), context_, response,
                       [&](core::Core& core, absl::Time now, core::Effects* effects) {
                         return request->context_worker()
                                    ? core.RestartContext(now, request->device(), effects)
                                    : core.RestartDevice(now, request->device(), effects);
                       });
}

grpc::ServerUnaryReactor* AdminService::ResetDevice(grpc::CallbackServerContext* context,
                                                    const v1::ResetDeviceRequest* request,
                                                    v1::Device* response) {
  return OperateDevice(Operation(context_, context, "ResetDevice"), request->device(), context_, response,
                       [&](core::Core& core, absl::Time now, core::Effects* effects) {
                         return core.ResetDevice(now, request->device(), effects);
                       });
}

grpc::ServerUnaryReactor* AdminService::DropDevice(grpc::CallbackServerContext* context,
                                                   const v1::DropDeviceRequest* request,
                                                   v1::Device* response) {
  return OperateDevice(Operation(context_, context, "DropDevice"), request->device(), context_, response,
                       [&](core::Core& core, absl::Time now, core::Effects* effects) {
                         return core.DropDevice(now, request->device(), effects);
                       });
}

grpc::ServerUnaryReactor* AdminService::DrainDevice(grpc::CallbackServerContext* context,
                                                    const v1::DrainDeviceRequest* request,
                                                    v1::Device* response) {
  return OperateDevice(Operation(context_, context, "DrainDevice"), request->device(), context_, response,
                       [&](core::Core& core, absl::Time now, core::Effects* effects) {
                         return core.DrainDevice(now, request->device(), request->reason(), effects);
                       });
}

grpc::ServerUnaryReactor* AdminService::UndrainDevice(grpc::CallbackServerContext* context,
                                                      const v1::UndrainDeviceRequest* request,
                                                      v1::Device* response) {
  return OperateDevice(Operation(context_, context, "UndrainDevice"), request->device(), context_, response,
                       [&](core::Core& core, absl::Time now, core::Effects* effects) {
                         return core.UndrainDevice(now, request->device(), effects);
                       });
}

grpc::ServerUnaryReactor* AdminService::ResetNode(grpc::CallbackServerContext* context,
                                                  const v1::ResetNodeRequest*, v1::ResetNodeResponse*) {
  Operation operation(context_, context, "ResetNode");
  if (!operation.status().ok()) return operation.Finish(operation.status());
  return operation.FinishBy(new AnswerFirst(reset_));
}

grpc::ServerUnaryReactor* AdminService::UpgradeNode(grpc::CallbackServerContext* context,
                                                    const v1::UpgradeNodeRequest*, v1::UpgradeNodeResponse*) {
  Operation operation(context_, context, "UpgradeNode");
  if (!operation.status().ok()) return operation.Finish(operation.status());
  return operation.FinishBy(new AnswerFirst(upgrade_));
}

}  // namespace berth::service
