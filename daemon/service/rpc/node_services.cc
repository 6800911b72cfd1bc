// DeviceService, NodeService and AdminService.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/admin.grpc.pb.h"
#include "berth/v1/device.grpc.pb.h"
#include "berth/v1/resources.pb.h"
#include "common/label.h"
#include "common/terminal_text.h"
#include "daemon/broker/event_loop.h"
#include "daemon/service/conversion/conversion.h"
#include "daemon/service/conversion/device_conversion.h"
#include "daemon/service/conversion/memory_conversion.h"
#include "daemon/service/conversion/permit_conversion.h"
#include "daemon/service/rpc/services.h"
#include "daemon/service/rpc/unary_call.h"

namespace berth::service {
namespace {

// Whether an operator's RPC is refused while the ledger is unreadable.
enum class Needs { kLedger, kNoLedger };

// An operator's RPC: authenticates the caller, and records the outcome.
class Operation {
 public:
  Operation(const ServiceContext& context, grpc::CallbackServerContext* call, absl::string_view verb,
            Needs needs = Needs::kLedger)
      : context_(context), call_(call) {
    const absl::StatusOr<core::Caller> caller = context.callers->Identify(*call);
    record_ = {.what = "operate", .facts = {{"verb", std::string(verb)}}, .caller = caller.value_or(core::Caller())};
    status_ = caller.status();
    if (!caller.ok()) return;
    status_ = context.broker->Read([&](const core::Core& core) { return core.Authenticate(*caller); });
    if (status_.ok() && !caller->admin) {
      status_ = Refuse(Reason::kAdminOnly, "{verb} needs admin.sock, which accepts operators only", {{"verb", verb}});
    }
    if (status_.ok() && needs == Needs::kLedger) status_ = context.broker->CheckLedger();
  }

  // Not OK if the call came in on another socket, without a known session, or without a readable ledger that it needs;
  // the call must then finish with this status.
  const absl::Status& status() const { return status_; }
  // The authenticated caller.
  const core::Caller& caller() const { return record_.caller; }
  uint32_t uid() const { return record_.caller.tenant.uid; }
  void Record(const char* name, std::string value) { record_.facts.emplace_back(name, std::move(value)); }
  grpc::ServerUnaryReactor* Finish(const absl::Status& status) {
    return FinishDecided(context_, call_, std::move(record_), status);
  }
  // Records the success, and lets `reactor` finish the call.
  grpc::ServerUnaryReactor* FinishBy(grpc::ServerUnaryReactor* reactor) {
    RecordDecision(context_, *call_, std::move(record_));
    return reactor;
  }

 private:
  const ServiceContext& context_;
  grpc::CallbackServerContext* const call_;
  AuditRecord record_;
  absl::Status status_;
};

// Serves an operator's RPC on one device: `operate(core, now, effects)` executes it and returns the device's new state.
template <typename Act>
grpc::ServerUnaryReactor* OperateDevice(Operation operation, uint32_t device, const ServiceContext& context,
                                        v1::Device* response, Act operate) {
  operation.Record("device", std::to_string(device));
  if (!operation.status().ok()) return operation.Finish(operation.status());
  absl::StatusOr<core::DeviceView> view;
  context.broker->Step(
      [&](core::Core& core, absl::Time now, core::Effects* effects) { view = operate(core, now, effects); });
  context.settings->Save();
  if (view.ok()) ToProto(*view, response);
  return operation.Finish(view.status());
}

// Omits an empty ring.
void SetReach(const core::RingReach& reach, absl::FunctionRef<v1::RecordReach*()> out) {
  if (reach.oldest == absl::InfiniteFuture()) return;
  WallToProto(reach.oldest, out()->mutable_oldest());
  if (reach.complete_since != absl::InfinitePast()) {
    WallToProto(reach.complete_since, out()->mutable_complete_since());
  }
}

// Answers OK, and runs an action once the answer has been sent.
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

// Checks a stop that would need the leases in the ledger.
absl::Status CheckStop(Broker& broker, absl::Duration drain, bool end_leases) {
  if (drain <= absl::ZeroDuration() && !end_leases) return absl::OkStatus();
  const absl::Status ledger = broker.CheckLedger();
  if (ledger.ok()) return absl::OkStatus();
  return Refuse(Reason::kLedgerUnreadable,
                "ledger {path}: {why}; a stop cannot wait for its leases or end them: `berth stop` without --drain and "
                "--end-leases stops the daemon and leaves the ledger as it is, `berth reset` ends every lease",
                {{"path", NamedValueOf(ledger, "path").value_or("")},
                 {"why", NamedValueOf(ledger, "why").value_or(std::string(ledger.message()))}});
}

// Waits until the core has drained the node, answers, and then stops the daemon.
class StopCall final : public grpc::ServerUnaryReactor, public Call {
 public:
  StopCall(Broker* broker, v1::StopNodeResponse* response, std::function<void()> stop)
      : broker_(*broker), id_(broker->NewCall()), response_(*response), stop_(std::move(stop)) {}

  void Submit(const core::Caller& caller, absl::Duration drain) {
    const auto step = [&](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
      core.DrainToStop(now, id, caller, now + drain, effects);
    };
    broker_.Submit(id_, this, step, /*always=*/true);
  }
  void Answer(absl::StatusOr<core::Response> response) override {
    drained_ = response.ok();
    if (drained_) ToProto(std::get<core::DrainResult>(*response), &response_);
    Finish(ToGrpc(response.status()));
  }
  void OnCancel() override { broker_.Cancel(id_); }
  void OnDone() override {
    broker_.EndCall();
    if (drained_) stop_();
    delete this;
  }

 private:
  Broker& broker_;
  const CallId id_;
  v1::StopNodeResponse& response_;
  const std::function<void()> stop_;
  bool drained_ = false;
};

struct ReapTraits : RpcDefaults<core::ReapResult> {
  static void Encode(const core::ReapResult& result, v1::ReapBlocksResponse* out) {
    out->set_tried_blocks(result.tried);
    out->set_tried_bytes(result.tried_bytes.count());
    out->set_returned_blocks(result.back);
    out->set_returned_bytes(result.back_bytes.count());
  }
};

class DeviceService final : public v1::DeviceService::CallbackService {
 public:
  DeviceService(ServiceContext context, DeviceWatches* watches) : context_(context), watches_(*watches) {}

  grpc::ServerUnaryReactor* ListDevices(grpc::CallbackServerContext* context, const v1::ListDevicesRequest*,
                                        v1::ListDevicesResponse* response) override {
    return ServeLook(
        context_, context,
        [](const core::Core& core, const core::Caller&) {
          return absl::StatusOr<std::vector<core::DeviceView>>(core.ListDevices());
        },
        [&](const std::vector<core::DeviceView>& views) {
          for (const core::DeviceView& view : views) ToProto(view, response->add_devices());
        });
  }

  grpc::ServerWriteReactor<v1::WatchDevicesResponse>* WatchDevices(grpc::CallbackServerContext* context,
                                                                   const v1::WatchDevicesRequest* request) override {
    const absl::StatusOr<core::Caller> caller = context_.callers->Identify(*context);
    AuditRecord record = {
        .what = "watch_devices", .outcome = caller.status(), .caller = caller.value_or(core::Caller())};
    const absl::StatusOr<std::shared_ptr<const Peer>> peer = context_.callers->FindPeer(*context);
    const bool of_operator = peer.ok() && (*peer)->role == Peer::Role::kAdmin;
    DeviceWatches::Reactor* const reactor =
        watches_.Start(context, caller, of_operator, request->resume_token(), &record.outcome);
    RecordDecision(context_, *context, std::move(record));
    return reactor;
  }

 private:
  const ServiceContext context_;
  DeviceWatches& watches_;
};

class NodeService final : public v1::NodeService::CallbackService {
 public:
  explicit NodeService(NodeSources sources) : sources_(std::move(sources)) {}

  grpc::ServerUnaryReactor* GetNode(grpc::CallbackServerContext* context, const v1::GetNodeRequest*,
                                    v1::Node* response) override {
    *response = *sources_.node;
    ToProto(serve_time_, response->mutable_serve_time());
    response->set_unwritten_log_records(sources_.log->unwritten());
    response->set_unwritten_audit_records(sources_.audit->unwritten());
    response->set_upgrading(sources_.page->upgrading != 0);
    response->set_upgrade_fault(ToTerminal(sources_.read_upgrade_fault()));
    sources_.read_pressure(response->mutable_pressure());
    SetReach(sources_.audit->reach(), [&] { return response->mutable_audit_reach(); });
    SetReach(sources_.log->reach(), [&] { return response->mutable_log_reach(); });
    SetReach(sources_.history->reach(), [&] { return response->mutable_history_reach(); });
    response->set_settings_fault(ToTerminal(sources_.settings->fault()));
    response->set_ledger_fault(ToTerminal(sources_.broker->CheckServes().message()));
    response->set_ledger_unreadable(!sources_.broker->CheckLedger().ok());
    response->set_stopping(sources_.broker->Read([](const core::Core& core) { return core.stopping(); }));
    return FinishNow(context, absl::OkStatus());
  }

 private:
  const NodeSources sources_;
  // Time of the broker's clock.
  const absl::Time serve_time_ = EventLoop::SteadyNow();
};

class AdminService final : public v1::AdminService::CallbackService {
 public:
  AdminService(ServiceContext context, ConfigSource* config, AdminActions actions)
      : context_(context), config_(*config), actions_(std::move(actions)) {}

  grpc::ServerUnaryReactor* SetPool(grpc::CallbackServerContext* context, const v1::SetPoolRequest* request,
                                    v1::Pool* response) override {
    Operation operation(context_, context, "SetPool");
    if (!operation.status().ok()) return operation.Finish(operation.status());
    operation.Record("change", request->ShortDebugString());
    const absl::StatusOr<core::PoolChange> change = FromProto(*request);
    if (!change.ok()) return operation.Finish(change.status());
    absl::StatusOr<core::PoolView> view;
    context_.broker->Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
      view = core.SetPool(now, PoolName(request->pool()), *change, effects);
    });
    context_.settings->Save();
    if (view.ok()) ToProto(*view, response);
    return operation.Finish(view.status());
  }

  grpc::ServerUnaryReactor* GetConfig(grpc::CallbackServerContext* context, const v1::GetConfigRequest*,
                                      v1::Config* response) override {
    const absl::StatusOr<core::Caller> caller = context_.callers->Identify(*context);
    if (!caller.ok() || !caller->observer) {
      Operation operation(context_, context, "GetConfig", Needs::kNoLedger);
      if (!operation.status().ok()) return operation.Finish(operation.status());
    }
    for (const ConfigValue& value : config_.Describe()) {
      v1::ConfigValue* const to = response->add_values();
      to->set_key(value.key);
      to->set_value(value.value);
      to->set_source(static_cast<v1::ConfigValue::Source>(value.origin));
      to->set_where(ToTerminal(value.where));
      to->set_while_running(value.while_running);
      to->set_pending(value.pending);
    }
    return FinishNow(context, absl::OkStatus());
  }

  grpc::ServerUnaryReactor* ReloadConfig(grpc::CallbackServerContext* context, const v1::ReloadConfigRequest*,
                                         v1::ReloadConfigResponse* response) override {
    Operation operation(context_, context, "ReloadConfig", Needs::kNoLedger);
    if (!operation.status().ok()) return operation.Finish(operation.status());
    // Done even if the configuration has a mistake: a rotated log must not be written to any more.
    const absl::Status reopened = config_.ReopenLogs();
    const absl::StatusOr<std::vector<ConfigChange>> changes = config_.Reload();
    if (!changes.ok()) {
      if (!reopened.ok()) operation.Record("logs", std::string(reopened.message()));
      return operation.Finish(changes.status());
    }
    for (const ConfigChange& change : *changes) {
      v1::ReloadConfigResponse::Change* const to = response->add_changes();
      to->set_key(change.key);
      to->set_from(change.from);
      to->set_to(change.to);
      to->set_why_not(change.why_not);
      if (!change.why_not.empty()) continue;
      operation.Record("change", absl::StrCat(change.key, ": ", change.from, " -> ", change.to));
    }
    return operation.Finish(reopened);
  }

  grpc::ServerUnaryReactor* RevokePermit(grpc::CallbackServerContext* context, const v1::RevokePermitRequest* request,
                                         v1::Permit* response) override {
    Operation operation(context_, context, "RevokePermit");
    if (!operation.status().ok()) return operation.Finish(operation.status());
    absl::StatusOr<core::PermitView> view;
    context_.broker->Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
      view = core.RevokePermit(now, PermitId(request->permit()), effects, operation.uid());
    });
    operation.Record("permit", std::to_string(request->permit()));
    if (view.ok()) {
      operation.Record("from_session", absl::StrCat(view->session.value()));
      operation.Record("from_pid", std::to_string(view->process.pid));
      ToProto(*view, response);
    }
    return operation.Finish(view.status());
  }

  grpc::ServerUnaryReactor* ReapBlocks(grpc::CallbackServerContext* context, const v1::ReapBlocksRequest*,
                                       v1::ReapBlocksResponse* response) override {
    const absl::StatusOr<core::Caller> caller = context_.callers->Identify(*context);
    if (!caller.ok()) return FinishRefused(context_, context, "operate", caller, caller.status());
    return PendingCall<ReapTraits, v1::ReapBlocksResponse>::Submit(
        context_, context, response,
        {.what = "operate", .facts = {{"verb", "ReapBlocks"}}, .caller = *caller},
        [&](core::Core& core, absl::Time now, CallId id, core::Effects* effects) {
          core.Reap(now, id, *caller, effects);
        });
  }

  grpc::ServerUnaryReactor* EnableDevice(grpc::CallbackServerContext* context, const v1::EnableDeviceRequest* request,
                                         v1::Device* response) override {
    return OperateDevice(Operation(context_, context, "EnableDevice"), request->device(), context_, response,
                         [&](core::Core& core, absl::Time now, core::Effects* effects) {
                           return core.EnableDevice(now, request->device(), effects);
                         });
  }

  grpc::ServerUnaryReactor* RestartDevice(grpc::CallbackServerContext* context,
                                          const v1::RestartDeviceRequest* request, v1::Device* response) override {
    return OperateDevice(Operation(context_, context, "RestartDevice"), request->device(), context_, response,
                         [&](core::Core& core, absl::Time now, core::Effects* effects) {
                           return request->context_worker()
                                      ? core.RestartContext(now, request->device(), effects)
                                      : core.RestartDevice(now, request->device(), effects);
                         });
  }

  grpc::ServerUnaryReactor* ResetDevice(grpc::CallbackServerContext* context, const v1::ResetDeviceRequest* request,
                                        v1::Device* response) override {
    return OperateDevice(Operation(context_, context, "ResetDevice"), request->device(), context_, response,
                         [&](core::Core& core, absl::Time now, core::Effects* effects) {
                           return core.ResetDevice(now, request->device(), effects);
                         });
  }

  grpc::ServerUnaryReactor* DropDevice(grpc::CallbackServerContext* context, const v1::DropDeviceRequest* request,
                                       v1::Device* response) override {
    return OperateDevice(Operation(context_, context, "DropDevice"), request->device(), context_, response,
                         [&](core::Core& core, absl::Time now, core::Effects* effects) {
                           return core.DropDevice(now, request->device(), effects);
                         });
  }

  grpc::ServerUnaryReactor* DrainDevice(grpc::CallbackServerContext* context, const v1::DrainDeviceRequest* request,
                                        v1::Device* response) override {
    return OperateDevice(Operation(context_, context, "DrainDevice"), request->device(), context_, response,
                         [&](core::Core& core, absl::Time now, core::Effects* effects) {
                           return core.DrainDevice(now, request->device(), request->reason(), effects);
                         });
  }

  grpc::ServerUnaryReactor* UndrainDevice(grpc::CallbackServerContext* context,
                                          const v1::UndrainDeviceRequest* request, v1::Device* response) override {
    return OperateDevice(Operation(context_, context, "UndrainDevice"), request->device(), context_, response,
                         [&](core::Core& core, absl::Time now, core::Effects* effects) {
                           return core.UndrainDevice(now, request->device(), effects);
                         });
  }

  grpc::ServerUnaryReactor* StopNode(grpc::CallbackServerContext* context, const v1::StopNodeRequest* request,
                                     v1::StopNodeResponse* response) override {
    Operation operation(context_, context, "StopNode", Needs::kNoLedger);
    if (!operation.status().ok()) return operation.Finish(operation.status());
    const absl::StatusOr<absl::Duration> drain = FromProto("drain", request->drain());
    if (!drain.ok()) return operation.Finish(drain.status());
    const bool end_leases = request->end_leases();
    operation.Record("drain", absl::FormatDuration(*drain));
    operation.Record("end_leases", end_leases ? "true" : "false");
    const absl::Status possible = CheckStop(*context_.broker, *drain, end_leases);
    if (!possible.ok()) return operation.Finish(possible);
    auto* const call = new StopCall(context_.broker, response, [this, end_leases, by_uid = operation.uid()] {
      actions_.stop(end_leases, by_uid);
    });
    call->Submit(operation.caller(), *drain);
    return operation.FinishBy(call);
  }

  grpc::ServerUnaryReactor* ResetNode(grpc::CallbackServerContext* context, const v1::ResetNodeRequest*,
                                      v1::ResetNodeResponse*) override {
    Operation operation(context_, context, "ResetNode", Needs::kNoLedger);
    if (!operation.status().ok()) return operation.Finish(operation.status());
    if (!IsRefusal(context_.broker->CheckServes(), Reason::kLedgerUnreadable)) {
      return operation.Finish(absl::FailedPreconditionError(
          "the ledger is readable, so it needs no reset: `berth stop --end-leases` ends every lease, `berth sessions "
          "end` and `berth permits revoke` end single leases"));
    }
    return operation.FinishBy(new AnswerFirst([this, by_uid = operation.uid()] { actions_.reset(by_uid); }));
  }

  grpc::ServerUnaryReactor* UpgradeNode(grpc::CallbackServerContext* context, const v1::UpgradeNodeRequest*,
                                        v1::UpgradeNodeResponse*) override {
    Operation operation(context_, context, "UpgradeNode", Needs::kNoLedger);
    if (!operation.status().ok()) return operation.Finish(operation.status());
    // Node.upgrade_fault and the log report an upgrade that fails later.
    if (const absl::Status program = actions_.prepare_upgrade(); !program.ok()) return operation.Finish(program);
    return operation.FinishBy(new AnswerFirst(actions_.upgrade));
  }

 private:
  const ServiceContext context_;
  ConfigSource& config_;
  const AdminActions actions_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeDeviceService(const ServiceContext& context, DeviceWatches* watches) {
  return std::make_unique<DeviceService>(context, watches);
}

std::unique_ptr<grpc::Service> MakeNodeService(NodeSources sources) {
  return std::make_unique<NodeService>(std::move(sources));
}

std::unique_ptr<grpc::Service> MakeAdminService(const ServiceContext& context, ConfigSource* config,
                                                AdminActions actions) {
  return std::make_unique<AdminService>(context, config, std::move(actions));
}

}  // namespace berth::service
