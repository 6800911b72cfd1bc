// RestoredLedger: the persisted state with which a broker starts.

#ifndef DAEMON_RECOVERY_LEDGER_RESTORE_H_
#define DAEMON_RECOVERY_LEDGER_RESTORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"
#include "daemon/base/ledger_record.h"
#include "daemon/core/core.h"
#include "daemon/ledger/ledger.h"
#include "daemon/supervisor/broker_link.h"
#include "daemon/supervisor/fd_store/fd_store_wire.h"
#include "daemon/supervisor/fd_store/supervisor_fd_store.h"

namespace berth {

// The ledger, and the records that earlier brokers of this incarnation committed to it.
struct RestoredLedger {
  std::unique_ptr<Ledger> ledger;
  // The file's id in the fd store; 0 if the store does not hold it.
  uint64_t id = 0;
  // Views of the records in the ledger's file.
  RecordViews records;
};

bool HasRecord(const RecordViews& records, const RecordKey& key);
// Whether `records` has a lease, or a waiting request for one, that survives a loss of the devices' memory: anything
// but blocks.
bool HasLeases(const RecordViews& records);

// Checks that a node record identifies the daemon of the ledger. Errors: kDataLoss; nothing may then be granted beside
// the leases of the ledger.
absl::Status CheckRecorded(const fd_store::Facts& facts, const std::string& folder);

// LedgerFds: holds the ledger's file in the fd store, each file under a greater id.
class LedgerFds : public LedgerHolder {
 public:
  // Takes the ledger files of earlier brokers out of `held`. `fd_store` outlives this.
  LedgerFds(SupervisorFdStore* fd_store, HeldFds* held);
  // Holds exactly the file of `restored`. Errors: SupervisorFdStore::Put()'s.
  absl::Status Begin(const RestoredLedger& restored);

  absl::Status Hold(int fd) override;
  void DropEarlier() override;
  void DropLast() override;

 private:
  struct Held {
    uint64_t id = 0;
    UniqueFd fd;
  };
  void Drop(size_t index);

  SupervisorFdStore& fd_store_;
  // Sorted by id.
  std::vector<Held> held_;
};

// Reads the ledger from the last file in `held` that is not superseded; without one, from `folder`. Creates a ledger if
// no broker ran before. Errors: LEDGER_UNREADABLE for an existing ledger; those of the system for a new one.
absl::StatusOr<RestoredLedger> ReadLedger(const fd_store::Facts& facts, std::vector<HeldFd> held,
                                          const std::string& folder);

// Restores the core from the records of the ledger. Records of an earlier schema are rewritten in the current schema;
// if that fails, the ledger is unchanged. Errors: those of the core's Restore() and CheckInvariants(); those of the
// file system.
absl::Status RestoreFromLedger(const RecordViews& records, Ledger* ledger, core::Core* core);

}  // namespace berth

#endif  // DAEMON_RECOVERY_LEDGER_RESTORE_H_
