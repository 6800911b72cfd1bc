// HistoryKeeper: writes the leases that begin and end into the history (daemon/ledger/history_store.h), and reads it
// for who asks: on a thread of its own, so that a grant waits for no disk, and no caller's thread either.
//
// What the disk does not take is kept for a while and tried again; what comes in the meantime and finds no place is
// left out and counted. A history that cannot be read is put aside, and begun anew. Its loss stops nothing.

#ifndef DAEMON_BROKER_HISTORY_KEEPER_H_
#define DAEMON_BROKER_HISTORY_KEEPER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/steady_cond_var.h"
#include "daemon/core/lease_record.h"
#include "daemon/core/page.h"
#include "daemon/ledger/history_store.h"

namespace berth {

// Thread-safe.
class HistoryKeeper {
 public:
  // Records that wait for the disk: some four megabytes.
  static constexpr size_t kWaiting = 16'384;
  // Queries that wait: of everybody, and of one tenant.
  static constexpr size_t kQueries = 64;
  static constexpr size_t kTenantQueries = 8;
  // Of the database's files together, and leases in it, unless it is configured.
  static constexpr Bytes kSize = MiB(64);
  static constexpr uint64_t kRows = 100'000;

  using Page = core::Page<HistoryLease>;
  // Called once, on the keeper's thread; must not wait.
  using Answer = std::function<void(absl::StatusOr<Page>)>;

  // No history is kept where `options.size` is 0.
  explicit HistoryKeeper(HistoryStore::Options options);
  HistoryKeeper(const HistoryKeeper&) = delete;
  HistoryKeeper& operator=(const HistoryKeeper&) = delete;
  // Writes what waits, if the disk takes it at once.
  ~HistoryKeeper() ABSL_LOCKS_EXCLUDED(mu_);

  // Never waits.
  void Append(core::LeaseRecord record) ABSL_LOCKS_EXCLUDED(mu_);
  // What is out as this broker begins, after the records appended so far. Called once.
  void Resume(std::vector<core::LeaseRecord> out) ABSL_LOCKS_EXCLUDED(mu_);
  // Answers with what was appended before. Queries for everybody's leases go first. Errors: LIMIT; UNSUPPORTED where no
  // history is kept; kInternal where it cannot be read now.
  void Query(HistoryQuery query, Answer answer) ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until the disk has what was appended, or did not take it; `patience` long at the most.
  void Flush(absl::Duration patience) ABSL_LOCKS_EXCLUDED(mu_);
  // Records that the history has not got and will not get.
  uint64_t unwritten() const ABSL_LOCKS_EXCLUDED(mu_);
  // Why nothing is written at the moment; empty where all is well.
  std::string fault() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Asked {
    HistoryQuery query;
    Answer answer;
  };
  // What is out, and after how many of the records that wait it was so.
  struct Beginning {
    std::vector<core::LeaseRecord> out;
    size_t after = 0;
  };

  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  // The thread's, as what follows: writes what it has, as far as that goes.
  absl::Status Write();
  absl::Status WriteRecords(size_t count);
  absl::Status Open();
  // Lets go of a history that turns out to be unreadable, so that it is begun anew. Returns: why that cannot be.
  absl::Status PutAside(const absl::Status& why);
  void Serve(const Asked& asked);

  const HistoryStore::Options options_;
  // The thread's.
  std::unique_ptr<HistoryStore> store_;
  std::deque<core::LeaseRecord> batch_;
  std::optional<Beginning> beginning_;

  mutable Mutex mu_;
  CondVar more_;
  SteadyCondVar idle_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t unwritten_ ABSL_GUARDED_BY(mu_) = 0;
  std::string fault_ ABSL_GUARDED_BY(mu_);
  std::vector<core::LeaseRecord> waiting_ ABSL_GUARDED_BY(mu_);
  std::optional<Beginning> begins_ ABSL_GUARDED_BY(mu_);
  std::deque<Asked> queries_ ABSL_GUARDED_BY(mu_);
  // Records that the thread has taken and not written yet; and whether it is at something.
  size_t writing_ ABSL_GUARDED_BY(mu_) = 0;
  bool working_ ABSL_GUARDED_BY(mu_) = false;

  // Runs where a history is kept.
  std::thread thread_;
};

}  // namespace berth

#endif  // DAEMON_BROKER_HISTORY_KEEPER_H_
