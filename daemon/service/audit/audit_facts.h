// Facts that several kinds of requests have in the audit log.

#ifndef DAEMON_SERVICE_AUDIT_AUDIT_FACTS_H_
#define DAEMON_SERVICE_AUDIT_AUDIT_FACTS_H_

#include <string>
#include <vector>

#include "daemon/core/types/budget_types.h"
#include "daemon/core/types/caller.h"
#include "daemon/service/audit/audit_log.h"

namespace berth::service {

using AuditFacts = std::vector<AuditFact>;

// Adds a request's label, unless it is empty.
void AddLabel(const std::string& label, AuditFacts* facts);

// Adds the bytes to reserve on each device, if any.
void AddItems(const std::vector<core::ReserveItem>& items, AuditFacts* facts);

// "uid 1000 in /container".
std::string OwnerOf(const core::Tenant& tenant);

}  // namespace berth::service

#endif  // DAEMON_SERVICE_AUDIT_AUDIT_FACTS_H_
