#include "daemon/kept_ledger.h"

#include "common/status_macros.h"
#include "daemon/core/row_kind.h"

namespace berth {

absl::StatusOr<KeptLedger> ReadKeptLedger(const custody::Facts& facts, const std::string& folder) {
  LedgerIdentity identity = {.schema = core::kRowSchema, .node = facts.node, .incarnation = facts.incarnation};
  BERTH_ASSIGN_OR_RETURN(identity.boot, ReadBootId());
  KeptLedger kept;
  if (facts.begun == 0) {
    BERTH_ASSIGN_OR_RETURN(kept.ledger, Ledger::Create(folder, identity));
    return kept;
  }
  BERTH_ASSIGN_OR_RETURN(kept.ledger, Ledger::Open(folder, identity));
  kept.rows = kept.ledger->AllRows();
  return kept;
}

}  // namespace berth
