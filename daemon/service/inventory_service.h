// The service that looks at the node's hardware: what the desk heard last, beside what the core has of each device.

#ifndef DAEMON_SERVICE_INVENTORY_SERVICE_H_
#define DAEMON_SERVICE_INVENTORY_SERVICE_H_

#include "berth/v1/inventory.grpc.pb.h"
#include "daemon/broker/inventory_desk.h"
#include "daemon/service/services.h"

namespace berth::service {

// Thread-safe. No call waits for a driver.
class InventoryService final : public v1::InventoryService::CallbackService {
 public:
  // `desk` must outlive the service.
  InventoryService(ServiceContext context, const InventoryDesk* desk) : context_(context), desk_(*desk) {}
  grpc::ServerUnaryReactor* ListInventory(grpc::CallbackServerContext*, const v1::ListInventoryRequest*,
                                          v1::ListInventoryResponse*) override;
  grpc::ServerUnaryReactor* GetTopology(grpc::CallbackServerContext*, const v1::GetTopologyRequest*,
                                        v1::Topology*) override;

 private:
  const ServiceContext context_;
  const InventoryDesk& desk_;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_INVENTORY_SERVICE_H_
