// AuditLog appends every decision of the daemon's to a file (docs/audit.md): what was asked, what became of it and why,
// and who asked: one JSON object a line. It is written by a thread of its own: a disk that is slow or full delays
// nobody; what it does not take in time is left out and counted, and numbers that are missing show where. The file is
// bounded: four of them take turns, and the oldest goes.
//
// Who asks is read when a process joins a session, while its pidfd says that it lives; a record names it by that. What
// is refused before it is known who asks names who is at the connection, and there are only so many such records.

#ifndef DAEMON_SERVICE_AUDIT_LOG_H_
#define DAEMON_SERVICE_AUDIT_LOG_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/bytes.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "common/steady_cond_var.h"
#include "common/unique_fd.h"
#include "daemon/core/caller.h"
#include "daemon/service/audit_who.h"
#include "daemon/service/token_bucket.h"

namespace berth::service {

// A named figure or text of a record: never a secret, nor a handle that is one.
using AuditFact = std::pair<const char*, std::string>;

struct AuditRecord {
  // A word such as "acquire".
  const char* what = "";
  std::vector<AuditFact> facts;
  // OK where it was granted or done.
  absl::Status outcome;
  // Who asked; no channel and no session where the daemon decided by itself.
  core::Caller caller;
  // Of one that has no channel; else that is looked up.
  std::shared_ptr<const AuditWho> who = nullptr;
};

// Of all its files together, unless it is configured.
inline constexpr Bytes kAuditSize = MiB(32);

// Thread-safe.
class AuditLog {
 public:
  // Records that wait for the file: a second of the most that a broker does.
  static constexpr size_t kWaiting = 16'384;
  static constexpr int kFiles = 4;
  // Refusals of one user's that are kept: it takes him most of a day to fill the files with no others.
  static constexpr Rate kRefusals = {.per_second = 1, .burst = 100};

  struct Options {
    // Where audit.jsonl is; made if it is not there.
    std::string folder;
    // All files together; 0 for none.
    Bytes size = kAuditSize;
    uint64_t incarnation = 0;
    uint64_t epoch = 0;
  };
  // A file that cannot be opened is tried again with each batch, and what it lacks is counted.
  explicit AuditLog(Options options);
  AuditLog(const AuditLog&) = delete;
  AuditLog& operator=(const AuditLog&) = delete;
  // Writes what waits.
  ~AuditLog() ABSL_LOCKS_EXCLUDED(mu_);

  // Never waits.
  void Append(AuditRecord record) ABSL_LOCKS_EXCLUDED(mu_);

  // Keeps what `make` says of a refusal that costs its user `uid` nothing, unless too many of his have come. How many
  // were left out, of anybody's, is said by the next one.
  void AppendRefusal(uint32_t uid, absl::Time now, absl::FunctionRef<AuditRecord()> make) ABSL_LOCKS_EXCLUDED(mu_);

  // From now on records of the session, or of the process's channel, say so; until it is over.
  void NoteSession(SessionId session, std::string label) ABSL_LOCKS_EXCLUDED(mu_);
  void NoteProcess(SessionId session, ChannelId channel, std::shared_ptr<const AuditWho> who) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether records of the session's name a process by that channel.
  bool Knows(SessionId session, ChannelId channel) const ABSL_LOCKS_EXCLUDED(mu_);
  // A session or a process that is over: the last record that names it.
  void EndSession(SessionId session) ABSL_LOCKS_EXCLUDED(mu_);
  void EndProcess(ChannelId channel) ABSL_LOCKS_EXCLUDED(mu_);

  // Waits until the file has what was appended, or did not take it; `patience` long at the most.
  void Flush(absl::Duration patience) ABSL_LOCKS_EXCLUDED(mu_);
  // Records that the file has not got.
  uint64_t unwritten() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Member {
    SessionId session;
    std::shared_ptr<const AuditWho> who;
  };
  // One on its way, with what was known of who asked.
  struct Line {
    uint64_t number = 0;
    absl::Time time;
    AuditRecord record;
    std::string label;
  };

  void AppendLocked(AuditRecord record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Write() ABSL_LOCKS_EXCLUDED(mu_);
  std::string Format(const Line& line) const;
  // Returns how many of them are not in the file. Of the writer's thread, as what follows.
  uint64_t WriteBatch(const std::vector<Line>& batch);
  // Whether there is a file with room for `size` more.
  bool Prepare(size_t size);
  void Rotate();
  std::string PathOf(int turn) const;

  const Options options_;
  // The writer's.
  UniqueFd file_;
  uint64_t file_size_ = 0;
  // The last line was not written to its end.
  bool torn_ = false;

  mutable Mutex mu_;
  CondVar more_;
  SteadyCondVar written_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  // Somebody waits for the file to have all.
  bool flushing_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t last_number_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t unwritten_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<Line> waiting_ ABSL_GUARDED_BY(mu_);
  size_t writing_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<SessionId, std::string> labels_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<ChannelId, Member> processes_ ABSL_GUARDED_BY(mu_);
  UidBuckets refusals_ ABSL_GUARDED_BY(mu_){kRefusals};
  uint64_t left_out_ ABSL_GUARDED_BY(mu_) = 0;

  // Runs where there is to be a file.
  std::thread writer_;
};

}  // namespace berth::service

#endif  // DAEMON_SERVICE_AUDIT_LOG_H_
