// Ledger stores the records that outlive the broker (daemon/base/ledger_record.h), in a file of the daemon's folder.
//
//   BERTH_ASSIGN_OR_RETURN(std::unique_ptr<Ledger> ledger, Ledger::Open(folder, identity));
//   core.Restore(ledger->AllRecords());
//   ... after each step, before any client learns of it:
//   BERTH_RETURN_IF_ERROR(ledger->Commit(changes));
//
// The ledger is a log of batches. The ledger rewrites the log once most of it is stale. A commit is in the file when
// Commit() returns, at the cost of at most two copies of its bytes (ledger_file.h). docs/design/0012 gives the reasons.

#ifndef DAEMON_LEDGER_LEDGER_H_
#define DAEMON_LEDGER_LEDGER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/os/unique_fd.h"
#include "daemon/base/ledger_record.h"
#include "daemon/ledger/ledger_file.h"

namespace berth {

// Keeps the ledger's file open for a later broker, even if the file has moved.
class LedgerHolder {
 public:
  virtual ~LedgerHolder() = default;
  // Holds a file in addition to the files already held. Errors: the file is not held.
  virtual absl::Status Hold(int fd) = 0;
  // Releases all files but the last.
  virtual void DropEarlier() = 0;
  // Releases the last file.
  virtual void DropLast() = 0;
};

// Thread-compatible.
class Ledger {
 public:
  // The file's name in the daemon's folder.
  static constexpr char kName[] = "ledger";
  // Capacity reserved in addition to the size of the records. It holds the changes that must be written when no other
  // capacity is left: processes end, operators connect.
  static constexpr uint64_t kHeadroom = uint64_t{4} << 20;

  // Creates an empty ledger in `folder` for a new incarnation, and replaces an existing one.
  static absl::StatusOr<std::unique_ptr<Ledger>> Create(const std::string& folder,
                                                        const LedgerIdentity& identity);
  // Opens the existing ledger. The caller must first Migrate() a ledger of an earlier schema. Errors: LEDGER_UNREADABLE
  // with the fault, if the ledger is missing, damaged, or does not match `identity`; kResourceExhausted if this process
  // has no fd or memory for it, which does not mean that the ledger is damaged. On an error nothing has changed.
  static absl::StatusOr<std::unique_ptr<Ledger>> Open(const std::string& folder,
                                                      const LedgerIdentity& identity);

  // Opens the ledger from a file that an earlier broker had open.
  static absl::StatusOr<std::unique_ptr<Ledger>> Open(UniqueFd file, const std::string& folder,
                                                      const LedgerIdentity& identity);

  // Sets the holder of the ledger's file. The ledger hands every later replacement file to `holder`. Requires: the
  // current file is held; `holder` outlives this.
  void SetHolder(LedgerHolder* holder) { holder_ = holder; }
  int fd() const { return file_.fd(); }
  // Writes the records into a new file in the folder if the current file is missing there. Errors: those of the file
  // system; the ledger continues with its current file.
  absl::Status RestoreFile();
  // Checks that the file has all committed changes, and nothing else. Errors: those of LedgerFile::CheckContent(); the
  // caller then replaces the file by Migrate().
  absl::Status CheckFile() { return file_.CheckContent(); }

  // Returns the error of Open() for `why`; for callers that find the fault in the records.
  static absl::Status Fault(const std::string& folder, const absl::Status& why);

  uint32_t schema() const { return file_.schema(); }
  // Replaces all records with `records`, the same records in the identity's schema, in a new file. The step is atomic.
  // Errors: those of the file system.
  absl::Status Migrate(const LedgerRecords& records);

  // Persists the changes: when this returns, all of them are in the file, or none. An unchanged record costs nothing.
  // Requires: no record twice in one batch. Errors: kResourceExhausted without capacity, which CheckCapacity()
  // predicts.
  absl::Status Commit(const RecordBatch& changes);

  // Checks that the headroom is available. Errors: LEDGER_FULL; the caller must then start nothing that adds records.
  absl::Status CheckCapacity();
  // Checks that all but half of kHeadroom is available, so that operators may still connect and read. The other half is
  // for ending leases. Errors: LEDGER_FULL.
  absl::Status CheckCapacityToLook();

  // All records, sorted by key. The views are valid until the next commit.
  RecordViews records() const;
  LedgerRecords AllRecords() const;
  // Whether Open() found an unfinished commit, and ignored it.
  bool torn() const { return file_.torn(); }
  uint64_t file_bytes() const { return file_.end(); }

 private:
  // The location of a record's content in the file.
  struct Place {
    uint64_t offset = 0;
    uint32_t size = 0;
  };

  Ledger(std::string path, LedgerIdentity identity, LedgerFile file)
      : path_(std::move(path)), identity_(std::move(identity)), file_(std::move(file)) {}

  // Applies the batch at `offset` to `places_` and `record_bytes_`.
  void Record(uint64_t offset, absl::string_view batch);
  uint64_t headroom() const { return kHeadroom + record_bytes_; }
  // Reserves `bytes` in addition to the headroom, or at least `bytes`.
  absl::Status FreeCapacity(uint64_t bytes);
  // Reserves `bytes` and the headroom. Errors: those of the file system, for lack of space.
  absl::Status Grow(uint64_t bytes);
  // Reserves `capacity` bytes. Errors: LEDGER_FULL.
  absl::Status Require(uint64_t capacity);
  bool MostlyStale() const;
  static absl::StatusOr<std::unique_ptr<Ledger>> Load(absl::StatusOr<LedgerFile> file, const std::string& folder,
                                                      const LedgerIdentity& identity);
  // Writes all records into a new file, which replaces the current file atomically. Errors: those of CheckFile(), as
  // the new file would give damaged records new checksums; those of the file system.
  absl::Status Compact();
  // Writes the records that `for_each` visits, of `bytes` in total, into such a file, once it has the capacity. Errors:
  // also those of `for_each`.
  using Visit = absl::FunctionRef<void(const RecordKey& key, absl::string_view content)>;
  absl::Status Replace(uint64_t bytes, absl::FunctionRef<absl::Status(Visit)> for_each);
  // Replaces the current file with the file at `path`, which holds all records.
  absl::Status Install(const std::string& path, LedgerFile& next);

  const std::string path_;
  const LedgerIdentity identity_;
  LedgerFile file_;
  // Null for none.
  LedgerHolder* holder_ = nullptr;
  absl::flat_hash_map<RecordKey, Place> places_;
  // Bytes that all records would take in a file.
  uint64_t record_bytes_ = 0;
  // The effective changes of the batch being committed.
  RecordBatch different_;
};

}  // namespace berth

#endif  // DAEMON_LEDGER_LEDGER_H_
