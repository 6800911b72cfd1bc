// HistoryStore records past and present leases in an SQLite database of the folder that outlives the daemon. The
// database is bounded in rows and in bytes. To free capacity, the store evicts from the users with the most rows or
// bytes (daemon/core/types/ring_shares.h), and from each user the oldest ended leases. The history is not an account of
// the leases that are out: the ledger is. The broker writes the history asynchronously
// (daemon/broker/history_writer.h).
//
// Lease times are wall time here. Each lease has one row; its end completes the row.

#ifndef DAEMON_LEDGER_HISTORY_STORE_H_
#define DAEMON_LEDGER_HISTORY_STORE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <berth/bytes.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/lease_record.h"
#include "daemon/core/types/page.h"
#include "daemon/core/types/ring_shares.h"

struct sqlite3;
struct sqlite3_stmt;

namespace berth {

struct HistoryLease {
  // Rises with every recorded lease.
  uint64_t number = 0;
  uint64_t incarnation = 0;
  core::LeaseRecord lease;
  // The lease has ended, and `lease.ended_at` and `lease.held` are known.
  bool end_seen = false;
};

// Selects the leases to list.
struct HistoryQuery {
  // The tenant of the leases; empty for all tenants.
  std::optional<core::Tenant> tenant;
  std::optional<core::LeaseKind> kind;
  // The pool of the leases; empty for any pool and for none.
  std::string pool;
  // The leases were out at some time between the two, both included.
  absl::Time since = absl::InfinitePast();
  absl::Time until = absl::InfiniteFuture();
  // Lists only leases with a smaller number, greatest first, at most `rows`.
  uint64_t before = UINT64_MAX;
  uint64_t rows = 0;
};

// Thread-compatible. A folder's database belongs to one store at a time.
class HistoryStore {
 public:
  // The database's name in its folder. RenameUnreadable() renames an unreadable database to kUnreadableName.
  static constexpr char kName[] = "history.db";
  static constexpr char kUnreadableName[] = "history.unreadable.db";
  // The smallest limits with which a database works.
  static constexpr Bytes kLeastSize = MiB(4);
  static constexpr uint64_t kLeastRows = 1'000;

  struct Options {
    // The database's folder; created if missing.
    std::string folder;
    // The most bytes of all files of the database together. At least kLeastSize.
    Bytes size;
    // The most rows. At least kLeastRows.
    uint64_t rows = 0;
    // The incarnation of the leases to write.
    uint64_t incarnation = 0;
    // The daemon's uid; its leases count to the operators' part.
    uint32_t operators = 0;
  };

  // Opens the database, or creates an empty one. Errors: kDataLoss for a damaged database; kFailedPrecondition for
  // another program's database or one of a later version. Both name the file and the fault, and the caller then calls
  // RenameUnreadable(). Also the errors of the file system.
  static absl::StatusOr<std::unique_ptr<HistoryStore>> Open(const Options& options);
  // Renames an unreadable database to kUnreadableName and replaces an earlier one there. Errors: those of the file
  // system.
  static absl::Status RenameUnreadable(const std::string& folder);

  HistoryStore(const HistoryStore&) = delete;
  HistoryStore& operator=(const HistoryStore&) = delete;
  ~HistoryStore();

  // Records grants and ends in their order, and adds to `*written` the number recorded: on an error, those before it.
  // An end without a recorded grant becomes a complete row. Errors: kResourceExhausted for a full disk; kDataLoss;
  // those of the file system.
  absl::Status Write(absl::Span<const core::LeaseRecord> records, size_t* written);
  // Reconciles the history with the leases that are out when a broker starts. Any other open lease is marked as ended
  // unseen; a missing lease is recorded.
  absl::Status Resume(const std::vector<core::LeaseRecord>& out);

  // Returns a page of leases. Errors: as Write().
  absl::StatusOr<core::Page<HistoryLease>> List(const HistoryQuery& query);

  uint64_t rows() const { return rows_; }
  // Returns how far back the leases reach, by grant time. Errors: as Write().
  absl::StatusOr<core::RingReach> Reach();

 private:
  using Key = std::pair<core::LeaseKind, uint64_t>;
  // A lease that has not ended.
  struct OpenRow {
    uint64_t number = 0;
    core::RingKey holder;
  };
  // The rows of a holder, and their approximate bytes.
  struct HolderTotals {
    uint64_t rows = 0;
    uint64_t bytes = 0;
  };
  // A prepared statement of the database, prepared at its first use.
  class Statement;
  // A row to insert, or an end to add to a row.
  struct Change;

  explicit HistoryStore(const Options& options);
  absl::Status Begin();
  absl::Status CheckIdentity();
  absl::Status ReadRows();
  absl::Status Execute(const char* text);
  absl::StatusOr<int64_t> ReadNumber(const char* text);
  // Returns SQLite's last error as a status.
  absl::Status Fault(int code) const;
  // Frees capacity for the changes, then applies them in one transaction.
  absl::Status Commit(absl::Span<const Change> changes);
  absl::Status Apply(const Change& change);
  absl::Status FreeCapacity(uint64_t rows);
  // Evicts `amount` from the holders with the most of `what`; at most as much as fits into one transaction.
  absl::Status Evict(uint64_t HolderTotals::*what, uint64_t amount);
  absl::Status EvictBytes();
  // Deletes at most `rows` rows of a holder: the oldest ended rows, then the oldest open rows.
  absl::Status DeleteOldest(const core::RingKey& holder, uint64_t rows);
  // Deletes a holder's rows up to number `last`; with `ended`, only rows of ended leases.
  absl::Status DeleteUpTo(const core::RingKey& holder, uint64_t last, bool ended);

  const Options options_;
  const std::string path_;
  // The most rows that a transaction changes, so that the database's log stays within its share of the bytes.
  const uint64_t most_changes_;
  const uint64_t most_pages_;
  sqlite3* database_ = nullptr;
  std::map<const char*, sqlite3_stmt*> statements_;
  uint64_t rows_ = 0;
  uint64_t last_number_ = 0;
  std::map<core::RingKey, HolderTotals> held_;
  // Grant time of the most recently granted lease that was evicted.
  absl::Time complete_since_ = absl::InfinitePast();
  // Rows of this incarnation whose lease has not ended.
  std::map<Key, OpenRow> open_;
};

}  // namespace berth

#endif  // DAEMON_LEDGER_HISTORY_STORE_H_
