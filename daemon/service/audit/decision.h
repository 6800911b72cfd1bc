// Records a call's decision in the audit log. The record names the process by its channel if the channel belongs to the
// session whose secret the caller has; else the process at the connection, whatever the caller claims.

#ifndef DAEMON_SERVICE_AUDIT_DECISION_H_
#define DAEMON_SERVICE_AUDIT_DECISION_H_

#include "absl/status/status.h"
#include "daemon/core/types/caller.h"
#include "daemon/service/audit/audit_log.h"
#include "daemon/service/rpc/service_context.h"

namespace grpc {
class CallbackServerContext;
}  // namespace grpc

namespace berth::service {

// Records a decision with its outcome. `record.caller` is the caller's claim.
void RecordDecision(const ServiceContext& services, const grpc::CallbackServerContext& call, AuditRecord record);

// Records that a call was refused before authentication or decoding; rate-limited (AuditLog::AppendRefusal).
void RecordRefusal(const ServiceContext& services, const grpc::CallbackServerContext& call, AuditRecord record);

// Returns whether a call was refused because its caller did not prove its identity.
bool IsUnproved(const absl::Status& outcome);

}  // namespace berth::service

#endif  // DAEMON_SERVICE_AUDIT_DECISION_H_
