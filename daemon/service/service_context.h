// What every service needs.

#ifndef DAEMON_SERVICE_SERVICE_CONTEXT_H_
#define DAEMON_SERVICE_SERVICE_CONTEXT_H_

#include "daemon/broker/broker.h"
#include "daemon/service/audit_log.h"
#include "daemon/service/caller.h"

namespace berth::service {

// Outlives the services.
struct ServiceContext {
  Broker* broker;
  const CallerSource* callers;
  AuditLog* audit;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_SERVICE_CONTEXT_H_
