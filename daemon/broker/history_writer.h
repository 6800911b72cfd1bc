// HistoryWriter: writes begins and ends of leases into the history (daemon/ledger/history_store.h), and answers queries
// of it. The writer uses its own thread, so that neither a grant nor a caller's thread waits for the disk.
//
// Records that the disk does not take stay queued and are retried. Records that find no place in the queue meanwhile
// are omitted and counted. One user's records take at most half of the places. An unreadable history is renamed, and a
// new one begins. The loss of a history stops no other part.

#ifndef DAEMON_BROKER_HISTORY_WRITER_H_
#define DAEMON_BROKER_HISTORY_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/steady_cond_var.h"
#include "common/thread.h"
#include "daemon/broker/user_turns.h"
#include "daemon/core/types/lease_record.h"
#include "daemon/core/types/page.h"
#include "daemon/core/types/ring_shares.h"
#include "daemon/ledger/history_store.h"

namespace berth {

// Thread-safe.
class HistoryWriter {
 public:
  // Limit of records that wait for the disk: about four megabytes.
  static constexpr size_t kWaiting = 16'384;
  // Limits of waiting queries: of all users together (each user has a share, daemon/core/types/user_share.h), of one
  // user, and of operators who query all users' leases.
  static constexpr size_t kQueries = 64;
  static constexpr size_t kUserQueries = 8;
  static constexpr size_t kOperatorQueries = 16;
  // Default limits: size of the database's files together, and number of leases in it.
  static constexpr Bytes kSize = MiB(64);
  static constexpr uint64_t kRows = 100'000;

  using Page = core::Page<HistoryLease>;
  // Called once, on the writer's thread; must not wait.
  using Answer = std::function<void(absl::StatusOr<Page>)>;

  // Records no history if `options.size` is 0.
  explicit HistoryWriter(HistoryStore::Options options);
  HistoryWriter(const HistoryWriter&) = delete;
  HistoryWriter& operator=(const HistoryWriter&) = delete;
  // Writes the queued records if the disk takes them at once.
  ~HistoryWriter() ABSL_LOCKS_EXCLUDED(mu_);

  // Queues a record. Never waits.
  void Append(core::LeaseRecord record) ABSL_LOCKS_EXCLUDED(mu_);
  // Records the leases that exist as this broker begins, after the records appended so far. Called once.
  void Resume(std::vector<core::LeaseRecord> out) ABSL_LOCKS_EXCLUDED(mu_);
  // Answers with the records appended before. Queries of all users' leases go first, and queries of single users take
  // turns. Errors: LIMIT; UNSUPPORTED if no history is recorded; kInternal if it cannot be read now.
  void Query(HistoryQuery query, Answer answer) ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until the appended records are on disk or were rejected by it, at most for `patience`.
  void Flush(absl::Duration patience) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the number of records that are missing from the history for good.
  uint64_t unwritten() const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns why nothing is written now; empty without a fault.
  std::string fault() const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns how far back the history reaches, as of the last write.
  core::RingReach reach() const ABSL_LOCKS_EXCLUDED(mu_);
  // The limits at which the history evicts leases.
  uint64_t row_limit() const { return options_.rows; }
  Bytes byte_limit() const { return options_.size; }

 private:
  struct Asked {
    HistoryQuery query;
    Answer answer;
  };
  // Existing leases, and the number of queued records that precede this state.
  struct Beginning {
    std::vector<core::LeaseRecord> out;
    size_t after = 0;
  };

  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  bool HasQueries() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !operator_queries_.empty() || !user_queries_.empty();
  }
  std::optional<Asked> TakeQuery() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The functions from here on run on the thread. Writes queued records, as far as possible.
  absl::Status Write() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status WriteRecords(size_t count) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Open();
  // Renames a history that turned out to be unreadable, so that a new one begins. Errors: kInternal if that fails, with
  // the reason.
  absl::Status RenameUnreadable(const absl::Status& why);
  void Serve(const Asked& asked);

  const HistoryStore::Options options_;
  // Used by the thread alone.
  std::unique_ptr<HistoryStore> store_;
  std::deque<core::LeaseRecord> batch_;
  std::optional<Beginning> beginning_;

  mutable Mutex mu_;
  CondVar more_;
  SteadyCondVar idle_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t unwritten_ ABSL_GUARDED_BY(mu_) = 0;
  std::string fault_ ABSL_GUARDED_BY(mu_);
  core::RingReach reach_ ABSL_GUARDED_BY(mu_);
  // Places of the records in waiting_ and of those that the thread has not written yet.
  core::RingPlaces places_ ABSL_GUARDED_BY(mu_){kWaiting};
  std::vector<core::LeaseRecord> waiting_ ABSL_GUARDED_BY(mu_);
  std::optional<Beginning> begins_ ABSL_GUARDED_BY(mu_);
  std::deque<Asked> operator_queries_ ABSL_GUARDED_BY(mu_);
  UserTurns<Asked> user_queries_ ABSL_GUARDED_BY(mu_);
  // Whether the thread is writing or answering.
  bool working_ ABSL_GUARDED_BY(mu_) = false;

  // Runs if a history is recorded.
  Thread thread_;
};

}  // namespace berth

#endif  // DAEMON_BROKER_HISTORY_WRITER_H_
