// HistoryStore: the leases that there were, in an SQLite database of the folder that outlives the daemon. It is bounded
// in rows and in bytes, and the oldest leases that have ended make room for the next. It is no account of what is out:
// that is the ledger's. It is written behind everybody's back (daemon/broker/history_keeper.h).
//
// Times of leases are wall time here. Of each there is one row, which its end completes.

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

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/bytes.h"
#include "daemon/core/caller.h"
#include "daemon/core/lease_record.h"
#include "daemon/core/page.h"

struct sqlite3;
struct sqlite3_stmt;

namespace berth {

// A lease of a history.
struct HistoryLease {
  // Rises with every lease that is entered.
  uint64_t number = 0;
  uint64_t incarnation = 0;
  core::LeaseRecord lease;
  // It has ended, and `ended_at` and `held` say when.
  bool end_seen = false;
};

// Which leases are asked for.
struct HistoryQuery {
  // Whose; nothing for everybody's.
  std::optional<core::Tenant> tenant;
  std::optional<core::LeaseKind> kind;
  // Of this pool; empty for any and none.
  std::string pool;
  // That were out at some time in between, both included.
  absl::Time since = absl::InfinitePast();
  absl::Time until = absl::InfiniteFuture();
  // With a smaller number, the greatest first, at most so many.
  uint64_t before = UINT64_MAX;
  uint64_t rows = 0;
};

// Thread-compatible. One at a time has a folder's database.
class HistoryStore {
 public:
  // The database's name in its folder; one that cannot be read is put aside under the other.
  static constexpr char kName[] = "history.db";
  static constexpr char kAsideName[] = "history.unreadable.db";
  // The least that a database works in.
  static constexpr Bytes kLeastSize = MiB(4);
  static constexpr uint64_t kLeastRows = 1'000;

  struct Options {
    // Made if it is not there.
    std::string folder;
    // Of the database's files together. At least kLeastSize.
    Bytes size;
    // At least kLeastRows.
    uint64_t rows = 0;
    // Of the leases that are written.
    uint64_t incarnation = 0;
  };

  // Opens what is there, or begins one. Errors: kDataLoss for one that is damaged; kFailedPrecondition for what is none
  // of ours, or of a later version; each naming the file and what is wrong: it is to be put aside. Those of the file
  // system.
  static absl::StatusOr<std::unique_ptr<HistoryStore>> Open(const Options& options);
  // Puts what cannot be read aside, in place of what was put aside before. Errors: those of the file system.
  static absl::Status PutAside(const std::string& folder);

  HistoryStore(const HistoryStore&) = delete;
  HistoryStore& operator=(const HistoryStore&) = delete;
  ~HistoryStore();

  // Enters grants and ends, in their order, and adds to `*written` how many of them are kept: on an error those before
  // it. An end whose grant was never entered is entered whole.
  // Errors: kResourceExhausted for a disk that is full; kDataLoss; those of the file system.
  absl::Status Write(absl::Span<const core::LeaseRecord> records, size_t* written);
  // A broker begins, and these are out: what else seems to be has ended unseen, and what is missing is entered.
  absl::Status Resume(const std::vector<core::LeaseRecord>& out);

  // Errors: as Write().
  absl::StatusOr<core::Page<HistoryLease>> List(const HistoryQuery& query);

  uint64_t rows() const { return rows_; }

 private:
  using Key = std::pair<core::LeaseKind, uint64_t>;
  // A statement of the database's, made when it is first used.
  class Statement;
  // A row that is to be entered, or its end that is to be added.
  struct Change;

  explicit HistoryStore(const Options& options);
  absl::Status Begin();
  absl::Status CheckIdentity();
  absl::Status ReadRows();
  absl::Status Execute(const char* text);
  absl::StatusOr<int64_t> ReadNumber(const char* text);
  // What SQLite said last.
  absl::Status Fault(int code) const;
  // Runs some changes in a transaction, after making room for them.
  absl::Status Commit(absl::Span<const Change> changes);
  absl::Status Apply(const Change& change);
  absl::Status MakeRoom(uint64_t rows);
  // Deletes the oldest leases that have ended, at most so many. Returns how many.
  absl::StatusOr<uint64_t> DeleteOldest(uint64_t rows);

  const Options options_;
  const std::string path_;
  // Rows that a transaction changes at most, so that the database's log stays within its share of the bytes.
  const uint64_t most_changes_;
  const uint64_t most_pages_;
  sqlite3* database_ = nullptr;
  std::map<const char*, sqlite3_stmt*> statements_;
  uint64_t rows_ = 0;
  uint64_t last_number_ = 0;
  // Rows of this incarnation that have not ended.
  std::map<Key, uint64_t> open_;
};

}  // namespace berth

#endif  // DAEMON_LEDGER_HISTORY_STORE_H_
