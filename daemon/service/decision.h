// What is kept of a call's decision in the audit log, and who is named: the process by its channel where that is the
// session's whose secret the caller has; else who is at the connection, whatever the caller says of itself.

#ifndef DAEMON_SERVICE_DECISION_H_
#define DAEMON_SERVICE_DECISION_H_

#include "absl/status/status.h"
#include "daemon/core/caller.h"
#include "daemon/service/audit_log.h"
#include "daemon/service/service_context.h"
#include "grpcpp/server_context.h"

namespace berth::service {

// Keeps a decision with its outcome. `record.caller` is what the caller says of itself.
void KeepDecision(const ServiceContext& services, const grpc::CallbackServerContext& call, AuditRecord record);

// Keeps that a call was refused before it was known who asks, or what: bounded (AuditLog::AppendRefusal).
void KeepRefusal(const ServiceContext& services, const grpc::CallbackServerContext& call, AuditRecord record);

// Whether a call was refused because its caller did not prove who it is.
bool IsUnproved(const absl::Status& outcome);

}  // namespace berth::service

#endif  // DAEMON_SERVICE_DECISION_H_
