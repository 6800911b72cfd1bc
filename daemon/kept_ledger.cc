#include "daemon/kept_ledger.h"

#include <algorithm>
#include <future>

#include "common/boot_id.h"
#include "common/status_macros.h"
#include "daemon/broker/node_clock.h"
#include "daemon/core/row_kind.h"
#include "spdlog/spdlog.h"

namespace berth {

bool HasRow(const RowViews& rows, const RowKey& key) {
  const auto at = std::lower_bound(rows.begin(), rows.end(), key,
                                   [](const auto& row, const RowKey& wanted) { return row.first < wanted; });
  return at != rows.end() && at->first == key;
}

absl::StatusOr<KeptLedger> ReadKeptLedger(const custody::Facts& facts, const std::string& folder) {
  LedgerIdentity identity = {.schema = core::kRowSchema,
                             .earliest_schema = core::kEarliestRowSchema,
                             .node = facts.node,
                             .incarnation = facts.incarnation};
  BERTH_ASSIGN_OR_RETURN(identity.boot, ReadBootId());
  KeptLedger kept;
  if (facts.begun == 0) {
    BERTH_ASSIGN_OR_RETURN(kept.ledger, Ledger::Create(folder, identity));
    return kept;
  }
  BERTH_ASSIGN_OR_RETURN(kept.ledger, Ledger::Open(folder, identity));
  kept.rows = kept.ledger->rows();
  return kept;
}

absl::Status RestoreKept(const RowViews& rows, Ledger* ledger, core::Core* core) {
  const uint32_t schema = ledger->schema();
  absl::Duration clock;
  // An earlier program's times were wall time.
  if (schema == 1) clock = absl::UnixEpoch() - NodeClock::Real().ToWall(absl::UnixEpoch());
  BERTH_RETURN_IF_ERROR(core->Restore(rows, {.schema = schema, .clock = clock}));
  // Each goes through all that is held.
  std::future<absl::Status> sums = std::async(std::launch::async, [core] { return core->CheckSums(); });
  BERTH_RETURN_IF_ERROR(core->CheckReferences());
  BERTH_RETURN_IF_ERROR(sums.get());
  if (schema == core::kRowSchema) return absl::OkStatus();
  BERTH_RETURN_IF_ERROR(ledger->Migrate(core->AllRows()));
  spdlog::info("ledger: its rows are of schema {} from now on, and were of {}", core::kRowSchema, schema);
  return absl::OkStatus();
}

}  // namespace berth
