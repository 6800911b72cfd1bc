// Berth's gRPC services: thin shims that decode, call the core, and encode. Each is thread-safe. Everything that a
// function takes must outlive the service and its calls.

#ifndef DAEMON_SERVICE_RPC_SERVICES_H_
#define DAEMON_SERVICE_RPC_SERVICES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/wire/state_page.h"
#include "daemon/broker/device_monitor_client.h"
#include "daemon/broker/history_writer.h"
#include "daemon/service/audit/allocation_log.h"
#include "daemon/service/rpc/config_source.h"
#include "daemon/service/rpc/device_watch.h"
#include "daemon/service/rpc/service_context.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace berth::v1 {
class Node;
class Pressure;
}  // namespace berth::v1

namespace berth::service {

std::unique_ptr<grpc::Service> MakeSessionService(const ServiceContext& context);
std::unique_ptr<grpc::Service> MakePermitService(const ServiceContext& context);
std::unique_ptr<grpc::Service> MakeMemoryService(const ServiceContext& context, const AllocationLog* log);
std::unique_ptr<grpc::Service> MakeFenceService(const ServiceContext& context);
std::unique_ptr<grpc::Service> MakePlanService(const ServiceContext& context);
std::unique_ptr<grpc::Service> MakeModuleService(const ServiceContext& context);
std::unique_ptr<grpc::Service> MakeDeviceService(const ServiceContext& context, DeviceWatches* watches);
std::unique_ptr<grpc::Service> MakeInventoryService(const ServiceContext& context,
                                                    const DeviceMonitorClient* monitor_client);
std::unique_ptr<grpc::Service> MakeHistoryService(const ServiceContext& context, HistoryWriter* history);

// The sources of the response to GetNode.
struct NodeSources {
  // The part that never changes.
  std::unique_ptr<const v1::Node> node;
  Broker* broker;
  const AllocationLog* log;
  const AuditLog* audit;
  const HistoryWriter* history;
  const SettingsStore* settings;
  const StatePageLayout* page;
  // Returns why the last upgrade failed; empty if it did not.
  std::function<std::string()> read_upgrade_fault;
  // Reports how near the broker is to its limits.
  std::function<void(v1::Pressure*)> read_pressure;
};
// Answers all callers, without authentication: the answer is the same for all.
std::unique_ptr<grpc::Service> MakeNodeService(NodeSources sources);

// Actions on the whole daemon, taken soon after the call. `by_uid` is the caller's uid.
struct AdminActions {
  // Restarts the daemon with empty state.
  std::function<void(uint32_t by_uid)> reset;
  // Checks that there is a program for `upgrade`, and then forgets why the last one failed.
  // Errors: kFailedPrecondition.
  std::function<absl::Status()> prepare_upgrade;
  // Replaces every process.
  std::function<void()> upgrade;
  std::function<void(bool end_leases, uint32_t by_uid)> stop;
};
std::unique_ptr<grpc::Service> MakeAdminService(const ServiceContext& context, ConfigSource* config,
                                                AdminActions actions);

}  // namespace berth::service

#endif  // DAEMON_SERVICE_RPC_SERVICES_H_
