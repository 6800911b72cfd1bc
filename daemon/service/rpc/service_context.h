// The objects that every service needs.

#ifndef DAEMON_SERVICE_RPC_SERVICE_CONTEXT_H_
#define DAEMON_SERVICE_RPC_SERVICE_CONTEXT_H_

#include "daemon/broker/broker.h"
#include "daemon/service/audit/audit_log.h"
#include "daemon/service/rpc/caller.h"
#include "daemon/service/rpc/settings_store.h"

namespace berth::service {

// Must outlive the services.
struct ServiceContext {
  Broker* broker;
  const CallerSource* callers;
  AuditLog* audit;
  SettingsStore* settings;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_RPC_SERVICE_CONTEXT_H_
