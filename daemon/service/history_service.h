// HistoryService: the shim of the history (daemon/broker/history_keeper.h). A disk may take long to give back what it
// has: the call is answered later, and no thread waits for it.

#ifndef DAEMON_SERVICE_HISTORY_SERVICE_H_
#define DAEMON_SERVICE_HISTORY_SERVICE_H_

#include "berth/v1/history.grpc.pb.h"
#include "daemon/broker/history_keeper.h"
#include "daemon/service/service_context.h"

namespace berth::service {

// Thread-safe.
class HistoryService final : public v1::HistoryService::CallbackService {
 public:
  // `history` must outlive the service and its calls.
  HistoryService(ServiceContext context, HistoryKeeper* history) : context_(context), history_(*history) {}
  grpc::ServerUnaryReactor* ListHistory(grpc::CallbackServerContext*, const v1::ListHistoryRequest*,
                                        v1::ListHistoryResponse*) override;

 private:
  const ServiceContext context_;
  HistoryKeeper& history_;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_HISTORY_SERVICE_H_
