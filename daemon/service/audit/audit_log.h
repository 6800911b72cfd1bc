// AuditLog appends every decision of the daemon to a file (docs/reference/audit.md): the request, its outcome with the
// reason, and the caller, as one JSON object a line. A separate thread writes the file, so a slow or full disk delays
// no caller. The log drops and counts records that the file does not take in time; gaps in the numbers show where. The
// files have a size limit, which accounts share (daemon/service/audit/audit_files.h).
//
// The daemon reads a process's identity when the process joins a session, while its pidfd proves that it lives; records
// use that identity. A refusal before authentication names the process at the connection. An account's refusals are
// recorded up to a rate; a separate line reports how many refusals of which account were dropped.

#ifndef DAEMON_SERVICE_AUDIT_AUDIT_LOG_H_
#define DAEMON_SERVICE_AUDIT_AUDIT_LOG_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <berth/bytes.h>
#include <berth/ids.h>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/steady_cond_var.h"
#include "common/thread.h"
#include "daemon/base/token_bucket.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/ring_shares.h"
#include "daemon/service/audit/audit_files.h"
#include "daemon/service/audit/audit_who.h"

namespace berth::service {

// A named value of a record: never a secret, nor a handle that acts as one.
using AuditFact = std::pair<const char*, std::string>;

struct AuditRecord {
  // A word such as "acquire".
  const char* what = "";
  std::vector<AuditFact> facts;
  // OK if the request was granted or done.
  absl::Status outcome;
  // The caller; without channel and session if the daemon decided by itself.
  core::Caller caller;
  // Identity of a caller without a channel; for other callers the log looks it up.
  std::shared_ptr<const AuditWho> who = nullptr;
};

// Default size limit of all files together.
inline constexpr Bytes kAuditSize = MiB(32);

// Thread-safe.
class AuditLog {
 public:
  // Capacity for records that wait for the file: one second of a broker's maximum rate.
  static constexpr size_t kWaiting = 16'384;
  // Rates of recorded refusals per account: before authentication or decoding; and of sessions.
  static constexpr Rate kRefusals = {.per_second = 1, .burst = 100};
  static constexpr Rate kSessionRefusals = {.per_second = 10, .burst = 1'000};
  // Interval after which a line reports the dropped refusals.
  static constexpr absl::Duration kCountFor = absl::Seconds(1);

  struct Options {
    // Folder of audit.jsonl; created if missing.
    std::string folder;
    // Size limit of all files together; 0 disables the log.
    Bytes size = kAuditSize;
    uint64_t incarnation = 0;
    uint64_t epoch = 0;
  };
  // The writer retries a file that cannot be opened with each line, and counts the missing records.
  explicit AuditLog(Options options);
  AuditLog(const AuditLog&) = delete;
  AuditLog& operator=(const AuditLog&) = delete;
  // Writes the waiting records.
  ~AuditLog() ABSL_LOCKS_EXCLUDED(mu_);

  // Never blocks. Drops a user's refusal if too many have arrived.
  void Append(AuditRecord record) ABSL_LOCKS_EXCLUDED(mu_);

  // Appends the record of `make` for a refusal that costs `tenant` nothing, unless its account exceeds the rate. `now`
  // is SteadyNow()'s.
  void AppendRefusal(const core::Tenant& tenant, absl::Time now, absl::FunctionRef<AuditRecord()> make)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Register the identity for later records of the session, or of the process's channel, until its end.
  void RecordSession(SessionId session, std::string label, const core::Tenant& tenant, bool of_operator)
      ABSL_LOCKS_EXCLUDED(mu_);
  void RecordProcess(SessionId session, ChannelId channel, std::shared_ptr<const AuditWho> who)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns whether records of the session can name a process by that channel.
  bool Knows(SessionId session, ChannelId channel) const ABSL_LOCKS_EXCLUDED(mu_);
  // Append the last record of an ended session or process, and remove its identity.
  void EndSession(SessionId session) ABSL_LOCKS_EXCLUDED(mu_);
  void EndProcess(ChannelId channel) ABSL_LOCKS_EXCLUDED(mu_);

  // Opens the file again after a rotation: after the return, no line goes to the earlier file. On an error, which names
  // the path, the earlier file stays in use.
  absl::Status Reopen() ABSL_LOCKS_EXCLUDED(mu_, files_mu_);
  // Waits at most `patience` until the file has all appended records or has failed to take them.
  void Flush(absl::Duration patience) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the number of records that the file lacks.
  uint64_t unwritten() const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns how far back the files reach, as of the last write.
  core::RingReach reach() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Member {
    SessionId session;
    std::shared_ptr<const AuditWho> who;
  };
  struct RecordedSession {
    std::string label;
    core::Tenant tenant;
    bool of_operator = false;
  };
  // A record in the queue, with the caller's identity at the time of Append().
  struct Line {
    uint64_t number = 0;
    absl::Time time;
    AuditRecord record;
    std::string label;
    core::RingKey share;
  };

  void AppendLocked(AuditRecord record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PushLocked(AuditRecord record, std::string label, const core::RingKey& share)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LeaveOutLocked(uint32_t account, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Appends the number of dropped refusals of each account.
  void SayLeftOutLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits for lines. Returns whether there are lines; false means that the log ends.
  bool AwaitLinesLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Write() ABSL_LOCKS_EXCLUDED(mu_);
  std::string Format(const Line& line) const;

  const Options options_;
  // Held while one line is written.
  Mutex files_mu_;
  AuditFiles files_ ABSL_GUARDED_BY(files_mu_);

  mutable Mutex mu_;
  SteadyCondVar more_;
  SteadyCondVar written_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  // A caller waits until the file has all records.
  bool flushing_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t last_number_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t unwritten_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<Line> waiting_ ABSL_GUARDED_BY(mu_);
  size_t writing_ ABSL_GUARDED_BY(mu_) = 0;
  // Places of the waiting lines and of those being written.
  core::RingPlaces places_ ABSL_GUARDED_BY(mu_){kWaiting};
  core::RingReach reach_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<SessionId, RecordedSession> sessions_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<ChannelId, Member> processes_ ABSL_GUARDED_BY(mu_);
  UidBuckets refusals_ ABSL_GUARDED_BY(mu_){kRefusals};
  UidBuckets session_refusals_ ABSL_GUARDED_BY(mu_){kSessionRefusals};
  // Dropped refusals by account since the last report; and the time of the next report.
  std::map<uint32_t, uint64_t> left_out_ ABSL_GUARDED_BY(mu_);
  absl::Time left_out_due_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();

  // Runs if a file is configured.
  Thread writer_;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_AUDIT_AUDIT_LOG_H_
