// KeptLedger: what a broker begins with of those before it.

#ifndef DAEMON_KEPT_LEDGER_H_
#define DAEMON_KEPT_LEDGER_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/row.h"
#include "daemon/core/core.h"
#include "daemon/ledger/ledger.h"
#include "daemon/vault/custody_wire.h"

namespace berth {

// The ledger, and the rows that earlier brokers of this incarnation have kept in it.
struct KeptLedger {
  std::unique_ptr<Ledger> ledger;
  // Where they lie in it.
  RowViews rows;
};

// Whether a row of that key is among those.
bool HasRow(const RowViews& rows, const RowKey& key);

// Reads them from `folder`; begins a ledger where there was no broker before. Errors: LEDGER_UNREADABLE, of what is
// there; those of the system, where there was nothing.
absl::StatusOr<KeptLedger> ReadKeptLedger(const custody::Facts& facts, const std::string& folder);

// Gives the core the rows that were read from the ledger. Where an earlier program wrote them they are written anew, as
// today's; where that fails, the ledger is as it was. Errors: those of the core's Restore() and CheckBooks(); those of
// the file system.
absl::Status RestoreKept(const RowViews& rows, Ledger* ledger, core::Core* core);

}  // namespace berth

#endif  // DAEMON_KEPT_LEDGER_H_
