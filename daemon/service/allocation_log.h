// AllocationLog keeps the last of the core's log records, and appends all of them to a file where one is configured:
// one JSON object of berth.v1.LogRecord a line. The file is written by a thread of its own: a disk that is slow or full
// delays nobody; what it does not take in time is left out and counted, and missing numbers show where.

#ifndef DAEMON_SERVICE_ALLOCATION_LOG_H_
#define DAEMON_SERVICE_ALLOCATION_LOG_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/steady_cond_var.h"
#include "common/unique_fd.h"
#include "daemon/core/caller.h"
#include "daemon/core/log_record.h"
#include "daemon/core/page.h"

namespace berth::service {

// Thread-safe.
class AllocationLog {
 public:
  // Records kept, and records that wait for the file: about two megabytes each.
  static constexpr size_t kKept = 4096;
  static constexpr size_t kWaiting = 4096;

  // Appends to `path`, which is made readable for its owner and group, where there is one. The records will be of
  // `incarnation`. Errors: the file's, naming it.
  static absl::StatusOr<std::unique_ptr<AllocationLog>> Open(const std::optional<std::string>& path,
                                                             uint64_t incarnation);
  // One whose file cannot be opened: each record counts as one that the file has not got.
  static std::unique_ptr<AllocationLog> WithoutItsFile(uint64_t incarnation);
  AllocationLog(const AllocationLog&) = delete;
  AllocationLog& operator=(const AllocationLog&) = delete;
  // Writes what waits.
  ~AllocationLog() ABSL_LOCKS_EXCLUDED(mu_);

  uint64_t incarnation() const { return incarnation_; }

  // Requires: numbers rise by one. Never waits. From then on its time is the wall's of that moment.
  void Append(core::LogRecord record) ABSL_LOCKS_EXCLUDED(mu_);

  // The kept records after `page.after`: for an admin all, else the caller's tenant's. `last` is what a later page goes
  // on after, `page.after` itself if there are none.
  core::Page<core::LogRecord> List(const core::Caller& caller, const core::PageRequest& page) const
      ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until the file has what was appended, or did not take it; `patience` long at the most.
  void Flush(absl::Duration patience) ABSL_LOCKS_EXCLUDED(mu_);

  // Records that the file has not got.
  uint64_t unwritten() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  AllocationLog(UniqueFd file, uint64_t incarnation, bool lacks_file);
  void Write() ABSL_LOCKS_EXCLUDED(mu_);
  // Whether the line was written, whole.
  bool WriteLine(const core::LogRecord& record);

  const UniqueFd file_;
  const uint64_t incarnation_;
  // There ought to be one.
  const bool lacks_file_;
  // The writer's: the last line was not written to its end.
  bool torn_ = false;

  mutable Mutex mu_;
  CondVar more_;
  SteadyCondVar written_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<core::LogRecord> kept_ ABSL_GUARDED_BY(mu_);
  std::deque<core::LogRecord> waiting_ ABSL_GUARDED_BY(mu_);
  // Taken from there and being written.
  size_t writing_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t unwritten_ ABSL_GUARDED_BY(mu_) = 0;

  // Runs where there is a file.
  std::thread writer_;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_ALLOCATION_LOG_H_
