#include "client/sdk/admin/inspector.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "berth/v1/admin.grpc.pb.h"
#include "berth/v1/device.grpc.pb.h"
#include "berth/v1/fence.grpc.pb.h"
#include "berth/v1/inventory.grpc.pb.h"
#include "berth/v1/memory.grpc.pb.h"
#include "berth/v1/module.grpc.pb.h"
#include "berth/v1/permit.grpc.pb.h"
#include "berth/v1/plan.grpc.pb.h"
#include "berth/v1/resources.pb.h"
#include "berth/v1/session.grpc.pb.h"
#include "client/sdk/transport/duration.h"
#include "client/sdk/transport/session_core.h"
#include "common/label.h"
#include "common/status_macros.h"
#include "common/steady_clock.h"

namespace berth {
namespace {

using internal::CallLimits;
using internal::SessionCore;

template <typename Service, typename Request, typename Response>
using Method = grpc::Status (Service::Stub::*)(grpc::ClientContext*, const Request&, Response*);

template <typename Service, typename Request, typename Response>
absl::StatusOr<Response> Get(SessionCore& core, Cancellation* cancellation, Method<Service, Request, Response> method,
                             const Request& request) {
  Response response;
  CallLimits limits = core.DefaultLimits();
  limits.cancellation = cancellation;
  BERTH_RETURN_IF_ERROR(core.Call(limits, [&](grpc::ClientContext* context) {
    return (core.stubs().Of<Service>().*method)(context, request, &response);
  }));
  return response;
}

// Joins the pages of a list: repeated fields are appended by MergeFrom.
template <typename Service, typename Request, typename Response>
absl::StatusOr<Response> List(SessionCore& core, Cancellation* cancellation, Method<Service, Request, Response> method,
                              Request request) {
  Response all;
  do {
    BERTH_ASSIGN_OR_RETURN(Response page, Get<Service>(core, cancellation, method, request));
    request.set_page_token(page.next_page_token());
    page.clear_next_page_token();
    all.MergeFrom(page);
  } while (!request.page_token().empty());
  return all;
}

}  // namespace

absl::StatusOr<v1::Node> Inspector::GetNode() const {
  SessionCore& core = *session_->core();
  return Get<v1::NodeService>(core, cancellation_, &v1::NodeService::Stub::GetNode, v1::GetNodeRequest());
}

absl::StatusOr<v1::ListDevicesResponse> Inspector::ListDevices() const {
  SessionCore& core = *session_->core();
  return Get<v1::DeviceService>(core, cancellation_, &v1::DeviceService::Stub::ListDevices, v1::ListDevicesRequest());
}

absl::Status Inspector::WatchDevices(
    absl::FunctionRef<bool(const v1::WatchDevicesResponse&)> on_devices) const {
  SessionCore& core = *session_->core();
  bool wanted = true;
  std::atomic<bool> received = false;
  // A watch that the daemon dropped for reading too slowly resumes where it was.
  v1::WatchDevicesRequest request;
  while (true) {
    bool served = false;
    const absl::Status status =
        core.Call({.deadline = absl::InfiniteFuture(), .cancellation = cancellation_, .received = &received},
                  [&](grpc::ClientContext* context) -> grpc::Status {
                    received = false;
                    const auto stream = core.stubs().Of<v1::DeviceService>().WatchDevices(context, request);
                    v1::WatchDevicesResponse devices;
                    while (wanted && stream->Read(&devices)) {
                      received = true;
                      served = true;
                      request.set_resume_token(devices.resume_token());
                      wanted = on_devices(devices);
                    }
                    if (wanted) return stream->Finish();
                    context->TryCancel();
                    stream->Finish();
                    return grpc::Status::OK;
                  });
    if (!wanted) return absl::OkStatus();
    // A stopping daemon ends the watch. Wait for a daemon that has served this watch before.
    served = served || (!request.resume_token().empty() && core.Check().ok());
    if (!absl::IsUnavailable(status) || !served) return status;
  }
}

absl::StatusOr<v1::ListPoolsResponse> Inspector::ListPools() const {
  SessionCore& core = *session_->core();
  return List<v1::PermitService>(core, cancellation_, &v1::PermitService::Stub::ListPools, v1::ListPoolsRequest());
}

absl::StatusOr<v1::ListPermitsResponse> Inspector::ListPermits(absl::string_view pool) const {
  BERTH_RETURN_IF_ERROR(ValidateLabel("pool", pool));
  SessionCore& core = *session_->core();
  v1::ListPermitsRequest request;
  request.set_pool(std::string(pool));
  return List<v1::PermitService>(core, cancellation_, &v1::PermitService::Stub::ListPermits, std::move(request));
}

absl::StatusOr<v1::ListBlocksResponse> Inspector::ListBlocks() const {
  SessionCore& core = *session_->core();
  return List<v1::MemoryService>(core, cancellation_, &v1::MemoryService::Stub::ListBlocks, v1::ListBlocksRequest());
}

absl::StatusOr<v1::ListModulesResponse> Inspector::ListModules() const {
  SessionCore& core = *session_->core();
  return List<v1::ModuleService>(core, cancellation_, &v1::ModuleService::Stub::ListModules, v1::ListModulesRequest());
}

absl::StatusOr<v1::ListStreamsResponse> Inspector::ListStreams() const {
  SessionCore& core = *session_->core();
  return List<v1::FenceService>(core, cancellation_, &v1::FenceService::Stub::ListStreams, v1::ListStreamsRequest());
}

absl::StatusOr<v1::ListSessionsResponse> Inspector::ListSessions() const {
  SessionCore& core = *session_->core();
  return List<v1::SessionService>(core, cancellation_, &v1::SessionService::Stub::ListSessions,
                                  v1::ListSessionsRequest());
}

absl::StatusOr<v1::ListReservationsResponse> Inspector::ListReservations() const {
  SessionCore& core = *session_->core();
  return List<v1::MemoryService>(core, cancellation_, &v1::MemoryService::Stub::ListReservations,
                                 v1::ListReservationsRequest());
}

absl::StatusOr<v1::ListPlansResponse> Inspector::ListPlans() const {
  SessionCore& core = *session_->core();
  return List<v1::PlanService>(core, cancellation_, &v1::PlanService::Stub::ListPlans, v1::ListPlansRequest());
}

absl::StatusOr<v1::Plan> Inspector::GetPlan(PlanId plan) const {
  SessionCore& core = *session_->core();
  v1::GetPlanRequest request;
  request.set_plan(plan.value());
  return Get<v1::PlanService>(core, cancellation_, &v1::PlanService::Stub::GetPlan, request);
}

absl::StatusOr<v1::SetBudgetResponse> Inspector::SetBudget(const v1::SetBudgetRequest& request) const {
  SessionCore& core = *session_->core();
  return Get<v1::MemoryService>(core, cancellation_, &v1::MemoryService::Stub::SetBudget, request);
}

absl::StatusOr<v1::ListBudgetsResponse> Inspector::ListBudgets() const {
  SessionCore& core = *session_->core();
  return List<v1::MemoryService>(core, cancellation_, &v1::MemoryService::Stub::ListBudgets, v1::ListBudgetsRequest());
}

absl::StatusOr<v1::Block> Inspector::RecallBlock(BlockId block) const {
  SessionCore& core = *session_->core();
  v1::RecallBlockRequest request;
  request.set_block(block.value());
  return Get<v1::MemoryService>(core, cancellation_, &v1::MemoryService::Stub::RecallBlock, request);
}

absl::StatusOr<v1::Block> Inspector::FreeBlock(BlockId block) const {
  SessionCore& core = *session_->core();
  v1::FreeBlockByIdRequest request;
  request.set_block(block.value());
  return Get<v1::MemoryService>(core, cancellation_, &v1::MemoryService::Stub::FreeBlockById, request);
}

absl::StatusOr<v1::ListLogRecordsResponse> Inspector::ListLogRecords(absl::string_view after) const {
  SessionCore& core = *session_->core();
  v1::ListLogRecordsRequest request;
  request.set_page_token(std::string(after));
  return List<v1::MemoryService>(core, cancellation_, &v1::MemoryService::Stub::ListLogRecords, std::move(request));
}

absl::StatusOr<v1::Config> Inspector::GetConfig() const {
  SessionCore& core = *session_->core();
  return Get<v1::AdminService>(core, cancellation_, &v1::AdminService::Stub::GetConfig, v1::GetConfigRequest());
}

absl::StatusOr<v1::ReloadConfigResponse> Inspector::ReloadConfig() const {
  SessionCore& core = *session_->core();
  return Get<v1::AdminService>(core, cancellation_, &v1::AdminService::Stub::ReloadConfig, v1::ReloadConfigRequest());
}

absl::StatusOr<v1::ListStraysResponse> Inspector::ListStrays() const {
  SessionCore& core = *session_->core();
  return Get<v1::PermitService>(core, cancellation_, &v1::PermitService::Stub::ListStrays, v1::ListStraysRequest());
}

absl::StatusOr<v1::ReapBlocksResponse> Inspector::ReapBlocks() const {
  SessionCore& core = *session_->core();
  return Get<v1::AdminService>(core, cancellation_, &v1::AdminService::Stub::ReapBlocks, v1::ReapBlocksRequest());
}

absl::StatusOr<v1::StopNodeResponse> Inspector::StopNode(absl::Duration drain, bool end_leases) const {
  SessionCore& core = *session_->core();
  v1::StopNodeRequest request;
  request.set_end_leases(end_leases);
  // A call that a broker's death interrupts is repeated with what is left of the time.
  const absl::Time drained = SteadyNow() + drain;
  v1::StopNodeResponse response;
  CallLimits limits = core.DefaultLimits();
  limits.deadline += drain;
  limits.cancellation = cancellation_;
  BERTH_RETURN_IF_ERROR(core.Call(limits, [&](grpc::ClientContext* context) {
    internal::ToProto(std::max(drained - SteadyNow(), absl::ZeroDuration()), request.mutable_drain());
    return core.stubs().Of<v1::AdminService>().StopNode(context, request, &response);
  }));
  return response;
}

absl::StatusOr<v1::ResetNodeResponse> Inspector::ResetNode() const {
  SessionCore& core = *session_->core();
  return Get<v1::AdminService>(core, cancellation_, &v1::AdminService::Stub::ResetNode, v1::ResetNodeRequest());
}

absl::StatusOr<v1::UpgradeNodeResponse> Inspector::UpgradeNode() const {
  SessionCore& core = *session_->core();
  return Get<v1::AdminService>(core, cancellation_, &v1::AdminService::Stub::UpgradeNode, v1::UpgradeNodeRequest());
}

absl::StatusOr<v1::Usage> Inspector::GetUsage() const {
  SessionCore& core = *session_->core();
  return Get<v1::MemoryService>(core, cancellation_, &v1::MemoryService::Stub::GetUsage, v1::GetUsageRequest());
}

absl::StatusOr<v1::Session> Inspector::EndSession(SessionId session) const {
  SessionCore& core = *session_->core();
  v1::EndSessionRequest request;
  request.set_session(session.value());
  return Get<v1::SessionService>(core, cancellation_, &v1::SessionService::Stub::EndSession, request);
}

absl::StatusOr<v1::Block> Inspector::ClearTorn(BlockId block) const {
  SessionCore& core = *session_->core();
  v1::ClearTornRequest request;
  request.set_block(block.value());
  return Get<v1::FenceService>(core, cancellation_, &v1::FenceService::Stub::ClearTorn, request);
}

absl::StatusOr<v1::WaitExplanation> Inspector::ExplainWait(uint64_t waiter) const {
  SessionCore& core = *session_->core();
  v1::ExplainWaitRequest request;
  request.set_waiter(waiter);
  return Get<v1::PermitService>(core, cancellation_, &v1::PermitService::Stub::ExplainWait, request);
}

absl::StatusOr<v1::Pool> Inspector::SetPool(const v1::SetPoolRequest& change) const {
  BERTH_RETURN_IF_ERROR(ValidateLabel("pool", change.pool()));
  SessionCore& core = *session_->core();
  return Get<v1::AdminService>(core, cancellation_, &v1::AdminService::Stub::SetPool, change);
}

absl::StatusOr<v1::Permit> Inspector::RevokePermit(PermitId permit) const {
  SessionCore& core = *session_->core();
  v1::RevokePermitRequest request;
  request.set_permit(permit.value());
  return Get<v1::AdminService>(core, cancellation_, &v1::AdminService::Stub::RevokePermit, request);
}

absl::StatusOr<v1::Device> Inspector::EnableDevice(uint32_t device) const {
  SessionCore& core = *session_->core();
  v1::EnableDeviceRequest request;
  request.set_device(device);
  return Get<v1::AdminService>(core, cancellation_, &v1::AdminService::Stub::EnableDevice, request);
}

absl::StatusOr<v1::Device> Inspector::RestartDevice(uint32_t device) const {
  SessionCore& core = *session_->core();
  v1::RestartDeviceRequest request;
  request.set_device(device);
  return Get<v1::AdminService>(core, cancellation_, &v1::AdminService::Stub::RestartDevice, request);
}

absl::StatusOr<v1::Device> Inspector::RestartContext(uint32_t device) const {
  SessionCore& core = *session_->core();
  v1::RestartDeviceRequest request;
  request.set_device(device);
  request.set_context_worker(true);
  return Get<v1::AdminService>(core, cancellation_, &v1::AdminService::Stub::RestartDevice, request);
}

absl::StatusOr<v1::Device> Inspector::ResetDevice(uint32_t device) const {
  SessionCore& core = *session_->core();
  v1::ResetDeviceRequest request;
  request.set_device(device);
  return Get<v1::AdminService>(core, cancellation_, &v1::AdminService::Stub::ResetDevice, request);
}

absl::StatusOr<v1::Device> Inspector::DropDevice(uint32_t device) const {
  SessionCore& core = *session_->core();
  v1::DropDeviceRequest request;
  request.set_device(device);
  return Get<v1::AdminService>(core, cancellation_, &v1::AdminService::Stub::DropDevice, request);
}

absl::StatusOr<v1::Device> Inspector::DrainDevice(uint32_t device, absl::string_view reason) const {
  SessionCore& core = *session_->core();
  v1::DrainDeviceRequest request;
  request.set_device(device);
  request.set_reason(ToLabel(reason));
  return Get<v1::AdminService>(core, cancellation_, &v1::AdminService::Stub::DrainDevice, request);
}

absl::StatusOr<v1::Device> Inspector::UndrainDevice(uint32_t device) const {
  SessionCore& core = *session_->core();
  v1::UndrainDeviceRequest request;
  request.set_device(device);
  return Get<v1::AdminService>(core, cancellation_, &v1::AdminService::Stub::UndrainDevice, request);
}

absl::StatusOr<v1::ListInventoryResponse> Inspector::ListInventory() const {
  SessionCore& core = *session_->core();
  return Get<v1::InventoryService>(core, cancellation_, &v1::InventoryService::Stub::ListInventory,
                                   v1::ListInventoryRequest());
}

absl::StatusOr<v1::Topology> Inspector::GetTopology() const {
  SessionCore& core = *session_->core();
  return Get<v1::InventoryService>(core, cancellation_, &v1::InventoryService::Stub::GetTopology,
                                   v1::GetTopologyRequest());
}

}  // namespace berth
