#include "daemon/recovery/ledger_restore.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/thread.h"
#include "daemon/base/boot_id.h"
#include "daemon/broker/node_clock.h"
#include "daemon/core/types/record_kind.h"
#include "spdlog/spdlog.h"

namespace berth {

bool HasRecord(const RecordViews& records, const RecordKey& key) {
  const auto at = std::lower_bound(records.begin(), records.end(), key,
                                   [](const auto& record, const RecordKey& wanted) { return record.first < wanted; });
  return at != records.end() && at->first == key;
}

bool HasLeases(const RecordViews& records) {
  return std::any_of(records.begin(), records.end(), [](const auto& record) {
    switch (static_cast<core::RecordKind>(record.first.kind)) {
      case core::RecordKind::kPermit:
      case core::RecordKind::kWaiter:
      case core::RecordKind::kReservation:
      case core::RecordKind::kByteWaiter:
        return true;
      default:
        return false;
    }
  });
}

absl::Status CheckRecorded(const fd_store::Facts& facts, const std::string& folder) {
  if (facts.begun != fd_store::kBegunUnrecorded) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("the node record ", folder, "/record was missing or damaged at the daemon's start"));
}

absl::StatusOr<RestoredLedger> ReadLedger(const fd_store::Facts& facts, std::vector<HeldFd> held,
                                          const std::string& folder) {
  LedgerIdentity identity = {.schema = core::kRecordSchema,
                             .earliest_schema = core::kEarliestRecordSchema,
                             .node = facts.node,
                             .incarnation = facts.incarnation};
  BERTH_ASSIGN_OR_RETURN(identity.boot, ReadBootId());
  RestoredLedger restored;
  if (facts.begun == 0) {
    BERTH_ASSIGN_OR_RETURN(restored.ledger, Ledger::Create(folder, identity));
    return restored;
  }
  // `held` is sorted by id.
  while (!held.empty()) {
    BERTH_ASSIGN_OR_RETURN(const bool superseded, LedgerFile::IsSuperseded(held.back().fd.get()));
    if (!superseded) break;
    held.pop_back();
  }
  if (held.empty()) {
    BERTH_ASSIGN_OR_RETURN(restored.ledger, Ledger::Open(folder, identity));
  } else {
    restored.id = held.back().key.id;
    BERTH_ASSIGN_OR_RETURN(restored.ledger, Ledger::Open(std::move(held.back().fd), folder, identity));
  }
  restored.records = restored.ledger->records();
  return restored;
}

LedgerFds::LedgerFds(SupervisorFdStore* fd_store, HeldFds* held) : fd_store_(*fd_store) {
  const auto begin = held->lower_bound(fd_store::KeyOf(fd_store::Kind::kLedger));
  const auto end = held->upper_bound(fd_store::KeyOf(fd_store::Kind::kLedger, UINT64_MAX));
  for (auto it = begin; it != end; ++it) held_.push_back({it->first.id, std::move(it->second)});
  held->erase(begin, end);
}

absl::Status LedgerFds::Begin(const RestoredLedger& restored) {
  if (restored.id == 0) {
    BERTH_RETURN_IF_ERROR(Hold(restored.ledger->fd()));
  } else {
    while (held_.back().id != restored.id) DropLast();
  }
  DropEarlier();
  restored.ledger->SetHolder(this);
  return absl::OkStatus();
}

absl::Status LedgerFds::Hold(int fd) {
  // A duplicate that stays open while the fd store holds the file; the ledger closes its own fd earlier.
  BERTH_ASSIGN_OR_RETURN(UniqueFd held, DuplicateFd(fd));
  const uint64_t id = held_.empty() ? 1 : held_.back().id + 1;
  BERTH_RETURN_IF_ERROR(fd_store_.Put(fd_store::KeyOf(fd_store::Kind::kLedger, id), held.get(), FdOwner::kDaemon));
  held_.push_back({id, std::move(held)});
  return absl::OkStatus();
}

void LedgerFds::Drop(size_t index) {
  fd_store_.Drop(fd_store::KeyOf(fd_store::Kind::kLedger, held_[index].id));
  held_.erase(held_.begin() + static_cast<ptrdiff_t>(index));
}

void LedgerFds::DropEarlier() {
  while (held_.size() > 1) Drop(0);
}

void LedgerFds::DropLast() { Drop(held_.size() - 1); }

absl::Status RestoreFromLedger(const RecordViews& records, Ledger* ledger, core::Core* core) {
  const uint32_t schema = ledger->schema();
  absl::Duration clock;
  // Schema 1 stored times as wall time.
  if (schema == 1) clock = absl::UnixEpoch() - NodeClock::Real().ToWall(absl::UnixEpoch());
  BERTH_RETURN_IF_ERROR(core->Restore(records, {.schema = schema, .clock = clock}));
  // Each check reads the whole core.
  ParallelCall<absl::Status> sums("the ledger's sums", [core] { return core->CheckSums(); });
  BERTH_RETURN_IF_ERROR(core->CheckReferences());
  BERTH_RETURN_IF_ERROR(sums.get());
  if (schema == core::kRecordSchema) return absl::OkStatus();
  BERTH_RETURN_IF_ERROR(ledger->Migrate(core->AllRecords()));
  spdlog::info("ledger: migrated its records from schema {} to schema {}", schema, core::kRecordSchema);
  return absl::OkStatus();
}

}  // namespace berth
