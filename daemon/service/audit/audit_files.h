// AuditFiles: the audit log's lines on disk, within a size limit. New lines go to audit.jsonl. When that file has a
// third of the bytes, its lines and those of audit.1.jsonl are compacted into a new audit.1.jsonl of at most a third.
// The compaction evicts the oldest lines of the accounts that have most (daemon/core/types/ring_shares.h), so no user's
// lines evict another user's or an operator's. Its first line holds the number of evicted lines so far; lines after its
// time are complete.

#ifndef DAEMON_SERVICE_AUDIT_AUDIT_FILES_H_
#define DAEMON_SERVICE_AUDIT_AUDIT_FILES_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include <berth/bytes.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/os/unique_fd.h"
#include "daemon/core/types/ring_shares.h"
#include "daemon/service/audit/write_fault.h"

namespace berth::service {

// Returns the value of a line's field "share", which precedes all client-supplied text in the line: "operators",
// "admission 1000", "1000".
std::string FormatShare(const core::RingKey& key);

// Thread-compatible.
class AuditFiles {
 public:
  // `size` limits all files together, also during a compaction.
  AuditFiles(std::string folder, Bytes size);
  AuditFiles(const AuditFiles&) = delete;
  AuditFiles& operator=(const AuditFiles&) = delete;

  // Creates the folder and the file if missing. Returns whether lines can be written.
  bool Open();
  // Opens the file again after a rotation: no later line goes to the earlier file. On an error, which names the path,
  // the earlier file stays in use.
  absl::Status Reopen();
  // Appends a line, which ends in '\n'. Returns whether the complete line is in the file.
  bool Write(absl::string_view line);

  // Returns how far back the lines reach.
  core::RingReach reach() const { return reach_; }

 private:
  // A failed compaction, such as on a full disk, is not retried before this time.
  static constexpr absl::Duration kRetryPause = absl::Seconds(1);

  std::string PathOf(int turn) const;
  absl::StatusOr<UniqueFd> OpenFile() const;
  bool Compact();
  // Returns whether the new file has all lines to retain.
  bool WriteCompacted(const std::string& path) const;
  void ReadReach();

  const std::string folder_;
  const uint64_t third_;
  UniqueFd file_;
  uint64_t file_size_ = 0;
  // The last line is incomplete.
  bool torn_ = false;
  WriteFault fault_;
  absl::Time retry_at_ = absl::InfinitePast();
  core::RingReach reach_;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_AUDIT_AUDIT_FILES_H_
