// What the audit log says of the core's requests and answers. A request without words here is no decision that it
// keeps: uses of blocks on streams, and what a process asks about itself.

#ifndef DAEMON_SERVICE_AUDIT_FACTS_H_
#define DAEMON_SERVICE_AUDIT_FACTS_H_

#include <string>
#include <variant>
#include <vector>

#include "daemon/core/block_types.h"
#include "daemon/core/budget_types.h"
#include "daemon/core/fence_types.h"
#include "daemon/core/gang_types.h"
#include "daemon/core/module_types.h"
#include "daemon/core/permit_types.h"
#include "daemon/core/plan_types.h"
#include "daemon/core/response.h"
#include "daemon/service/audit_log.h"

namespace berth::service {

// The word for the request, with its figures added to `facts`; null for one that is not kept.
const char* AddFacts(const core::AcquireRequest& request, std::vector<AuditFact>* facts);
const char* AddFacts(const core::GangRequest& request, std::vector<AuditFact>* facts);
const char* AddFacts(const AcquisitionId& release, std::vector<AuditFact>* facts);
const char* AddFacts(const core::ReleaseIfIdleRequest& request, std::vector<AuditFact>* facts);
const char* AddFacts(const core::AllocateRequest& request, std::vector<AuditFact>* facts);
const char* AddFacts(const core::FreeRequest& request, std::vector<AuditFact>* facts);
const char* AddFacts(const core::GrantRequest& request, std::vector<AuditFact>* facts);
const char* AddFacts(const core::ImportRequest& request, std::vector<AuditFact>* facts);
const char* AddFacts(const core::PublishRequest& request, std::vector<AuditFact>* facts);
const char* AddFacts(const core::UnpublishRequest& request, std::vector<AuditFact>* facts);
const char* AddFacts(const core::ReserveRequest& request, std::vector<AuditFact>* facts);
const char* AddFacts(const ReservationId& release, std::vector<AuditFact>* facts);
const char* AddFacts(const core::PlanRequest& request, std::vector<AuditFact>* facts);
const char* AddFacts(const core::ReplanRequest& request, std::vector<AuditFact>* facts);
const char* AddFacts(const PlanId& release, std::vector<AuditFact>* facts);
const char* AddFacts(const core::SetBudgetRequest& request, std::vector<AuditFact>* facts);
const char* AddFacts(const core::ObtainModuleRequest& request, std::vector<AuditFact>* facts);
const char* AddFacts(const core::StoreModuleRequest& request, std::vector<AuditFact>* facts);
const char* AddFacts(const core::AbandonModuleRequest& request, std::vector<AuditFact>* facts);
const char* AddFacts(const core::OpenStreamRequest& request, std::vector<AuditFact>* facts);
const char* AddFacts(const core::CloseStreamRequest& request, std::vector<AuditFact>* facts);
template <typename Request>
const char* AddFacts(const Request&, std::vector<AuditFact>*) {
  return nullptr;
}

// What the answer gave.
void AddFacts(const core::Response& response, std::vector<AuditFact>* facts);

std::string AuditId(uint64_t id);

}  // namespace berth::service

#endif  // DAEMON_SERVICE_AUDIT_FACTS_H_
