// AllocationLog holds the core's most recent log records, and appends all records to a file if one is configured: one
// JSON object of berth.v1.LogRecord a line. A separate thread writes the file, so a slow or full disk delays no caller.
// The log drops and counts records that the file does not take in time; gaps in the numbers show where. To free
// capacity for newer records, the log evicts the oldest of the users that have most (daemon/core/types/ring_shares.h).

#ifndef DAEMON_SERVICE_AUDIT_ALLOCATION_LOG_H_
#define DAEMON_SERVICE_AUDIT_ALLOCATION_LOG_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/os/unique_fd.h"
#include "common/steady_cond_var.h"
#include "common/thread.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/log_record.h"
#include "daemon/core/types/page.h"
#include "daemon/core/types/ring_shares.h"
#include "daemon/service/audit/write_fault.h"

namespace berth::service {

// Thread-safe.
class AllocationLog {
 public:
  // Capacity for held records, and for records that wait for the file: about 2 MB each.
  static constexpr size_t kMaxRecords = 4096;
  static constexpr size_t kWaiting = 4096;

  // Appends to `path` if set; the file is created readable for its owner and group. `incarnation` applies to all
  // records. `inherited` is the fd that a path such as /dev/fd/9 names, which outlives this; -1 for none. The standard
  // streams are this process's own. Errors: the file's, naming it.
  static absl::StatusOr<std::unique_ptr<AllocationLog>> Open(const std::optional<std::string>& path,
                                                             uint64_t incarnation, int inherited = -1);
  // Like Open(), for a file that cannot be opened now: every record counts as unwritten until Reopen().
  static std::unique_ptr<AllocationLog> WithoutItsFile(const std::string& path, uint64_t incarnation);
  AllocationLog(const AllocationLog&) = delete;
  AllocationLog& operator=(const AllocationLog&) = delete;
  // Writes the waiting records.
  ~AllocationLog() ABSL_LOCKS_EXCLUDED(mu_);

  uint64_t incarnation() const { return incarnation_; }

  // Requires: numbers rise by one. Never blocks. Converts the record's time to the wall time of this moment.
  void Append(core::LogRecord record) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the held records after `page.after`: all for an admin, else the caller's tenant's. `last` is the position
  // from which the next page continues; `page.after` itself if there are no records.
  core::Page<core::LogRecord> List(const core::Caller& caller, const core::PageRequest& page) const
      ABSL_LOCKS_EXCLUDED(mu_);

  // Opens the path again, for a log rotation: after the return, no record goes to the earlier file. On an error, which
  // names the path, the earlier file stays in use.
  absl::Status Reopen() ABSL_LOCKS_EXCLUDED(file_mu_);

  // Waits at most `patience` until the file has all appended records or has failed to take them.
  void Flush(absl::Duration patience) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the number of records that the file lacks.
  uint64_t unwritten() const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns how far back the held records reach.
  core::RingReach reach() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  AllocationLog(std::optional<std::string> path, UniqueFd file, uint64_t incarnation, int inherited);
  core::RingKey ShareOf(const core::LogRecord& record) const;
  // Evicts an eighth of the held records.
  void FreeCapacityLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Write() ABSL_LOCKS_EXCLUDED(mu_);
  // Returns whether the complete line was written.
  bool WriteLine(const core::LogRecord& record) ABSL_LOCKS_EXCLUDED(file_mu_);

  const std::optional<std::string> path_;
  const int inherited_;
  const uint64_t incarnation_;
  // The daemon's uid; its records count in the operators' share.
  const uint32_t operators_;

  // Held while one line is written.
  Mutex file_mu_;
  UniqueFd file_ ABSL_GUARDED_BY(file_mu_);
  // The file's last line is incomplete.
  bool torn_ ABSL_GUARDED_BY(file_mu_) = false;
  WriteFault fault_ ABSL_GUARDED_BY(file_mu_);

  mutable Mutex mu_;
  CondVar more_;
  SteadyCondVar written_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  // Numbers rise, with gaps where records were evicted.
  std::deque<core::LogRecord> records_ ABSL_GUARDED_BY(mu_);
  absl::Time complete_since_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  std::deque<core::LogRecord> waiting_ ABSL_GUARDED_BY(mu_);
  // Records taken from `waiting_` that are being written.
  size_t writing_ ABSL_GUARDED_BY(mu_) = 0;
  // Places of both the waiting records and those being written.
  core::RingPlaces places_ ABSL_GUARDED_BY(mu_){kWaiting};
  uint64_t unwritten_ ABSL_GUARDED_BY(mu_) = 0;

  // Runs if a path is configured.
  Thread writer_;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_AUDIT_ALLOCATION_LOG_H_
