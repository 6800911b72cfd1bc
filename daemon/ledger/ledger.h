// Ledger: the rows that outlive the broker (common/row.h), in a file of the daemon's folder.
//
//   BERTH_ASSIGN_OR_RETURN(std::unique_ptr<Ledger> ledger, Ledger::Open(folder, identity));
//   core.Restore(ledger->AllRows());
//   ... after each step, before anybody hears of it:
//   BERTH_RETURN_IF_ERROR(ledger->Commit(changes));
//
// It is a log of batches that is written anew once most of it is stale. A commit is in the file as soon as it returns,
// for no more than two copies of its bytes (ledger_file.h). docs/design/0012 says why.

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
#include "common/row.h"
#include "daemon/ledger/ledger_file.h"

namespace berth {

// Thread-compatible.
class Ledger {
 public:
  // The file's name in the daemon's folder.
  static constexpr char kName[] = "ledger";
  // Room kept beside as much as the rows take: what must be written when no room is to be had (processes end, operators
  // look) fits.
  static constexpr uint64_t kHeadroom = uint64_t{4} << 20;

  // Starts an empty one in `folder`, in place of what is there: of an incarnation that begins.
  static absl::StatusOr<std::unique_ptr<Ledger>> Create(const std::string& folder,
                                                        const LedgerIdentity& identity);
  // Goes on with what is there; where it is of an earlier schema, it is to be Migrate()d first of all. Errors:
  // LEDGER_UNREADABLE, saying what is wrong, for one that is not there, is damaged, or is not what `identity` says;
  // kResourceExhausted where this process had no fd or memory for it, which says nothing of the ledger. Nothing was
  // changed.
  static absl::StatusOr<std::unique_ptr<Ledger>> Open(const std::string& folder,
                                                      const LedgerIdentity& identity);

  // What Open() says of one, for whoever finds out about its rows.
  static absl::Status Fault(const std::string& folder, const absl::Status& why);

  // Of the rows that were found.
  uint32_t schema() const { return file_.schema(); }
  // Takes the rows, which are those that were found as they are by the identity's own schema, in their place: at once,
  // or not at all. Errors: those of the file system.
  absl::Status Migrate(const Rows& rows);

  // Keeps the changes: all of them are in the file when this returns, or none. Rows that are what they were cost
  // nothing. Requires: no row twice in one batch.
  // Errors: kResourceExhausted where there is no room, which CheckRoom() sees coming.
  absl::Status Commit(const RowBatch& changes);

  // Whether the headroom is there. Errors: LEDGER_FULL: nothing shall be begun that makes the rows more.
  absl::Status CheckRoom();
  // Whether all but half of kHeadroom is: operators may still come and look. The rest is for what ends. Errors:
  // LEDGER_FULL.
  absl::Status CheckRoomToLook();

  // Valid until something is committed.
  RowViews rows() const;
  Rows AllRows() const;
  // Whether Open() found a commit that was under way, and left it out.
  bool torn() const { return file_.torn(); }
  uint64_t file_bytes() const { return file_.end(); }
  uint64_t row_bytes() const { return row_bytes_; }

 private:
  // Where a row's content lies in the file.
  struct Place {
    uint64_t offset = 0;
    uint32_t size = 0;
  };

  Ledger(std::string path, LedgerIdentity identity, LedgerFile file)
      : path_(std::move(path)), identity_(std::move(identity)), file_(std::move(file)) {}

  // A batch that lies at `offset`.
  void Note(uint64_t offset, absl::string_view batch);
  uint64_t headroom() const { return kHeadroom + row_bytes_; }
  // Makes room for `bytes` beside the headroom, or at least for them.
  absl::Status MakeRoom(uint64_t bytes);
  // Makes room for both. Errors: those of the file system, where it has not that much.
  absl::Status Grow(uint64_t bytes);
  // Makes that much room. Errors: LEDGER_FULL.
  absl::Status Require(uint64_t room);
  bool MostlyStale() const;
  // Writes all rows into a new file, which takes the old one's place at once.
  absl::Status Compact();
  // The same with those that `for_each` visits, which take `bytes`.
  using Visit = absl::FunctionRef<void(const RowKey& key, absl::string_view content)>;
  absl::Status Replace(uint64_t bytes, absl::FunctionRef<void(Visit)> for_each);

  const std::string path_;
  const LedgerIdentity identity_;
  LedgerFile file_;
  absl::flat_hash_map<RowKey, Place> places_;
  // What all rows would take in a file.
  uint64_t row_bytes_ = 0;
  // What differs of the batch that is being committed.
  RowBatch different_;
};

}  // namespace berth

#endif  // DAEMON_LEDGER_LEDGER_H_
