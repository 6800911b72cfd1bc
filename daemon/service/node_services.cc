// The services that look at the node, and the operator's.

#include <vector>

#include "common/error.h"
#include "common/label.h"
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

grpc::ServerUnaryReactor* NodeService::GetNode(grpc::CallbackServerContext* context,
                                               const v1::GetNodeRequest*, v1::Node* response) {
  *response = node_;
  return FinishNow(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* AdminService::SetPoolCap(grpc::CallbackServerContext* context,
                                                   const v1::SetPoolCapRequest* request, v1::Pool* response) {
  if (const auto admin = IdentifyAdmin(context_, *context, "SetPoolCap"); !admin.ok()) {
    return FinishNow(context, admin.status());
  }
  if (const absl::Status valid = ValidateLabel("pool", request->pool()); !valid.ok()) {
    return FinishNow(context, valid);
  }
  absl::StatusOr<core::PoolView> view;
  context_.broker->Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    view = core.SetPoolCap(now, PoolName(request->pool()), request->cap(), effects);
  });
  if (view.ok()) ToProto(*view, response);
  return FinishNow(context, view.status());
}

grpc::ServerUnaryReactor* AdminService::SetDeviceBudget(grpc::CallbackServerContext* context,
                                                        const v1::SetDeviceBudgetRequest* request,
                                                        v1::Device* response) {
  if (const auto admin = IdentifyAdmin(context_, *context, "SetDeviceBudget"); !admin.ok()) {
    return FinishNow(context, admin.status());
  }
  absl::StatusOr<core::DeviceView> view;
  context_.broker->Step([&](core::Core& core, absl::Time now, core::Effects* effects) {
    view = core.SetDeviceBudget(now, request->device(), Bytes(request->budget_bytes()), effects);
  });
  if (view.ok()) ToProto(*view, response);
  return FinishNow(context, view.status());
}

}  // namespace berth::service
