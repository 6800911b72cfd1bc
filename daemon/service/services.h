// Berth's gRPC services: thin shims that decode, ask the core, and encode. Each is thread-safe.

#ifndef DAEMON_SERVICE_SERVICES_H_
#define DAEMON_SERVICE_SERVICES_H_

#include <functional>
#include <utility>

#include "absl/time/time.h"
#include "berth/v1/admin.grpc.pb.h"
#include "berth/v1/device.grpc.pb.h"
#include "berth/v1/fence.grpc.pb.h"
#include "berth/v1/memory.grpc.pb.h"
#include "berth/v1/permit.grpc.pb.h"
#include "berth/v1/session.grpc.pb.h"
#include "common/state_page.h"
#include "daemon/broker/broker.h"
#include "daemon/broker/event_loop.h"
#include "daemon/service/allocation_log.h"
#include "daemon/service/config_source.h"
#include "daemon/service/device_watch.h"
#include "daemon/service/service_context.h"

namespace berth::service {

class SessionService final : public v1::SessionService::CallbackService {
 public:
  explicit SessionService(ServiceContext context) : context_(context) {}
  grpc::ServerUnaryReactor* GetSession(grpc::CallbackServerContext*, const v1::GetSessionRequest*,
                                       v1::Session*) override;
  grpc::ServerUnaryReactor* ListSessions(grpc::CallbackServerContext*, const v1::ListSessionsRequest*,
                                         v1::ListSessionsResponse*) override;
  grpc::ServerUnaryReactor* EndSession(grpc::CallbackServerContext*, const v1::EndSessionRequest*,
                                       v1::Session*) override;
  grpc::ServerUnaryReactor* ForgetRequest(grpc::CallbackServerContext*, const v1::ForgetRequestRequest*,
                                          v1::ForgetRequestResponse*) override;

 private:
  const ServiceContext context_;
};

class PermitService final : public v1::PermitService::CallbackService {
 public:
  explicit PermitService(ServiceContext context) : context_(context) {}
  grpc::ServerUnaryReactor* AcquirePermit(grpc::CallbackServerContext*, const v1::AcquirePermitRequest*,
                                          v1::AcquirePermitResponse*) override;
  grpc::ServerUnaryReactor* ListStrays(grpc::CallbackServerContext*, const v1::ListStraysRequest*,
                                       v1::ListStraysResponse*) override;
  grpc::ServerUnaryReactor* AcquireGang(grpc::CallbackServerContext*, const v1::AcquireGangRequest*,
                                        v1::AcquireGangResponse*) override;
  grpc::ServerUnaryReactor* ReleasePermit(grpc::CallbackServerContext*, const v1::ReleasePermitRequest*,
                                          v1::ReleasePermitResponse*) override;
  grpc::ServerUnaryReactor* KeepPermits(grpc::CallbackServerContext*, const v1::KeepPermitsRequest*,
                                        v1::KeepPermitsResponse*) override;
  grpc::ServerUnaryReactor* GetPool(grpc::CallbackServerContext*, const v1::GetPoolRequest*,
                                    v1::Pool*) override;
  grpc::ServerUnaryReactor* ListPools(grpc::CallbackServerContext*, const v1::ListPoolsRequest*,
                                      v1::ListPoolsResponse*) override;
  grpc::ServerUnaryReactor* ListPermits(grpc::CallbackServerContext*, const v1::ListPermitsRequest*,
                                        v1::ListPermitsResponse*) override;
  grpc::ServerUnaryReactor* ExplainWait(grpc::CallbackServerContext*, const v1::ExplainWaitRequest*,
                                        v1::WaitExplanation*) override;

 private:
  const ServiceContext context_;
};

class MemoryService final : public v1::MemoryService::CallbackService {
 public:
  // `log` must outlive the service.
  MemoryService(ServiceContext context, const AllocationLog* log) : context_(context), log_(*log) {}
  grpc::ServerUnaryReactor* AllocateBlock(grpc::CallbackServerContext*, const v1::AllocateBlockRequest*,
                                          v1::AllocateBlockResponse*) override;
  grpc::ServerUnaryReactor* FreeBlock(grpc::CallbackServerContext*, const v1::FreeBlockRequest*,
                                      v1::FreeBlockResponse*) override;
  grpc::ServerUnaryReactor* GrantBlock(grpc::CallbackServerContext*, const v1::GrantBlockRequest*,
                                       v1::GrantBlockResponse*) override;
  grpc::ServerUnaryReactor* ImportBlock(grpc::CallbackServerContext*, const v1::ImportBlockRequest*,
                                        v1::ImportBlockResponse*) override;
  grpc::ServerUnaryReactor* PublishBlock(grpc::CallbackServerContext*, const v1::PublishBlockRequest*,
                                         v1::PublishBlockResponse*) override;
  grpc::ServerUnaryReactor* UnpublishBlock(grpc::CallbackServerContext*, const v1::UnpublishBlockRequest*,
                                           v1::UnpublishBlockResponse*) override;
  grpc::ServerUnaryReactor* ReserveBytes(grpc::CallbackServerContext*, const v1::ReserveBytesRequest*,
                                         v1::Reservation*) override;
  grpc::ServerUnaryReactor* ReleaseReservation(grpc::CallbackServerContext*,
                                               const v1::ReleaseReservationRequest*,
                                               v1::ReleaseReservationResponse*) override;
  grpc::ServerUnaryReactor* ListReservations(grpc::CallbackServerContext*, const v1::ListReservationsRequest*,
                                             v1::ListReservationsResponse*) override;
  grpc::ServerUnaryReactor* SetBudget(grpc::CallbackServerContext*, const v1::SetBudgetRequest*,
                                      v1::SetBudgetResponse*) override;
  grpc::ServerUnaryReactor* ListBudgets(grpc::CallbackServerContext*, const v1::ListBudgetsRequest*,
                                        v1::ListBudgetsResponse*) override;
  grpc::ServerUnaryReactor* RecallBlock(grpc::CallbackServerContext*, const v1::RecallBlockRequest*,
                                        v1::Block*) override;
  grpc::ServerUnaryReactor* FreeBlockById(grpc::CallbackServerContext*, const v1::FreeBlockByIdRequest*,
                                          v1::Block*) override;
  grpc::ServerUnaryReactor* ListLogRecords(grpc::CallbackServerContext*, const v1::ListLogRecordsRequest*,
                                           v1::ListLogRecordsResponse*) override;
  grpc::ServerUnaryReactor* ListBlocks(grpc::CallbackServerContext*, const v1::ListBlocksRequest*,
                                       v1::ListBlocksResponse*) override;
  grpc::ServerUnaryReactor* GetUsage(grpc::CallbackServerContext*, const v1::GetUsageRequest*,
                                     v1::Usage*) override;

 private:
  const ServiceContext context_;
  const AllocationLog& log_;
};

class FenceService final : public v1::FenceService::CallbackService {
 public:
  explicit FenceService(ServiceContext context) : context_(context) {}
  grpc::ServerUnaryReactor* OpenStream(grpc::CallbackServerContext*, const v1::OpenStreamRequest*,
                                       v1::OpenStreamResponse*) override;
  grpc::ServerUnaryReactor* CloseStream(grpc::CallbackServerContext*, const v1::CloseStreamRequest*,
                                        v1::CloseStreamResponse*) override;
  grpc::ServerUnaryReactor* PrepareUse(grpc::CallbackServerContext*, const v1::PrepareUseRequest*,
                                       v1::PrepareUseResponse*) override;
  grpc::ServerUnaryReactor* FinishUse(grpc::CallbackServerContext*, const v1::FinishUseRequest*,
                                      v1::FinishUseResponse*) override;
  grpc::ServerUnaryReactor* ClearTorn(grpc::CallbackServerContext*, const v1::ClearTornRequest*,
                                      v1::Block*) override;
  grpc::ServerUnaryReactor* AbandonUse(grpc::CallbackServerContext*, const v1::AbandonUseRequest*,
                                       v1::AbandonUseResponse*) override;
  grpc::ServerUnaryReactor* ListStreams(grpc::CallbackServerContext*, const v1::ListStreamsRequest*,
                                        v1::ListStreamsResponse*) override;

 private:
  const ServiceContext context_;
};

class DeviceService final : public v1::DeviceService::CallbackService {
 public:
  // `watches` must outlive the service.
  DeviceService(ServiceContext context, DeviceWatches* watches) : context_(context), watches_(*watches) {}
  grpc::ServerUnaryReactor* ListDevices(grpc::CallbackServerContext*, const v1::ListDevicesRequest*,
                                        v1::ListDevicesResponse*) override;
  grpc::ServerWriteReactor<v1::WatchDevicesResponse>* WatchDevices(grpc::CallbackServerContext*,
                                                                   const v1::WatchDevicesRequest*) override;

 private:
  const ServiceContext context_;
  DeviceWatches& watches_;
};

// Answers anybody: what it says is the same for all.
class NodeService final : public v1::NodeService::CallbackService {
 public:
  // Says how near the broker is to its bounds.
  using ReadPressure = std::function<void(v1::Pressure*)>;
  // All of them must outlive the service.
  NodeService(v1::Node node, Broker* broker, const AllocationLog* log, const AuditLog* audit,
              const StatePageLayout* page, ReadPressure read_pressure)
      : node_(std::move(node)),
        broker_(*broker),
        log_(*log),
        audit_(*audit),
        page_(*page),
        read_pressure_(std::move(read_pressure)) {}
  grpc::ServerUnaryReactor* GetNode(grpc::CallbackServerContext*, const v1::GetNodeRequest*,
                                    v1::Node*) override;

 private:
  const v1::Node node_;
  // Of the broker's clock.
  const absl::Time serve_time_ = EventLoop::SteadyNow();
  Broker& broker_;
  const AllocationLog& log_;
  const AuditLog& audit_;
  const StatePageLayout& page_;
  const ReadPressure read_pressure_;
};

class AdminService final : public v1::AdminService::CallbackService {
 public:
  // `config` outlives this. `reset` has everything begin anew, `upgrade` every process replaced; both soon.
  AdminService(ServiceContext context, ConfigSource* config, std::function<void()> reset,
               std::function<void()> upgrade)
      : context_(context), config_(*config), reset_(std::move(reset)), upgrade_(std::move(upgrade)) {}
  grpc::ServerUnaryReactor* GetConfig(grpc::CallbackServerContext*, const v1::GetConfigRequest*,
                                      v1::Config*) override;
  grpc::ServerUnaryReactor* ReloadConfig(grpc::CallbackServerContext*, const v1::ReloadConfigRequest*,
                                         v1::ReloadConfigResponse*) override;
  grpc::ServerUnaryReactor* SetPool(grpc::CallbackServerContext*, const v1::SetPoolRequest*,
                                    v1::Pool*) override;
  grpc::ServerUnaryReactor* RevokePermit(grpc::CallbackServerContext*, const v1::RevokePermitRequest*,
                                         v1::Permit*) override;
  grpc::ServerUnaryReactor* ReapBlocks(grpc::CallbackServerContext*, const v1::ReapBlocksRequest*,
                                       v1::ReapBlocksResponse*) override;
  grpc::ServerUnaryReactor* EnableDevice(grpc::CallbackServerContext*, const v1::EnableDeviceRequest*,
                                         v1::Device*) override;
  grpc::ServerUnaryReactor* RestartDevice(grpc::CallbackServerContext*, const v1::RestartDeviceRequest*,
                                          v1::Device*) override;
  grpc::ServerUnaryReactor* ResetDevice(grpc::CallbackServerContext*, const v1::ResetDeviceRequest*,
                                        v1::Device*) override;
  grpc::ServerUnaryReactor* DropDevice(grpc::CallbackServerContext*, const v1::DropDeviceRequest*,
                                       v1::Device*) override;
  grpc::ServerUnaryReactor* DrainDevice(grpc::CallbackServerContext*, const v1::DrainDeviceRequest*,
                                        v1::Device*) override;
  grpc::ServerUnaryReactor* UndrainDevice(grpc::CallbackServerContext*, const v1::UndrainDeviceRequest*,
                                          v1::Device*) override;
  grpc::ServerUnaryReactor* ResetNode(grpc::CallbackServerContext*, const v1::ResetNodeRequest*,
                                      v1::ResetNodeResponse*) override;
  grpc::ServerUnaryReactor* UpgradeNode(grpc::CallbackServerContext*, const v1::UpgradeNodeRequest*,
                                        v1::UpgradeNodeResponse*) override;

 private:
  const ServiceContext context_;
  ConfigSource& config_;
  const std::function<void()> reset_;
  const std::function<void()> upgrade_;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_SERVICES_H_
