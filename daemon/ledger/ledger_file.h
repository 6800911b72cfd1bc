// LedgerFile: one file of the ledger's, mapped into memory. To append is to copy and to store one word, without a
// system call: what a process has stored is in the file, whatever becomes of the process. (What becomes of the
// machine does not matter: the ledger lives with the boot.)

#ifndef DAEMON_LEDGER_LEDGER_FILE_H_
#define DAEMON_LEDGER_LEDGER_FILE_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/unique_fd.h"
#include "daemon/ledger/ledger_format.h"

namespace berth {

// Whose a ledger is.
struct LedgerIdentity {
  // Of the rows.
  uint32_t schema = 0;
  // The earliest that is read; 0 for that one alone.
  uint32_t earliest_schema = 0;
  uint64_t node = 0;
  uint64_t incarnation = 0;
  // ReadBootId()'s (common/boot_id.h); at most 39 bytes.
  std::string boot;
};

// Movable; unmaps when destroyed. Thread-compatible. While it is there nobody else writes to the file.
class LedgerFile {
 public:
  // Makes an empty one at `path`, over what is there. Errors: those of the file system.
  static absl::StatusOr<LedgerFile> Create(const std::string& path, const LedgerIdentity& identity);
  // Opens one, of any schema from the identity's earliest on, and checks it from end to end.
  // Errors: kNotFound; kDataLoss for one that is cut short or damaged; kFailedPrecondition for what is none, of another
  // identity, or of another version; each says what. Those of the file system.
  static absl::StatusOr<LedgerFile> Open(const std::string& path, const LedgerIdentity& identity);

  LedgerFile(LedgerFile&& other) noexcept;
  LedgerFile& operator=(LedgerFile&& other) noexcept;
  ~LedgerFile();

  // Appends a batch; it is kept when this returns. Returns where in the file it lies.
  // Requires: room() >= sizeof(LedgerFrame) + batch.size(), and batch.size() below 4 GiB.
  uint64_t Append(absl::string_view batch);

  // Visits every batch in its order, with where it lies.
  void ForEach(absl::FunctionRef<void(uint64_t offset, absl::string_view batch)> visit) const;

  // Bytes that can be appended, their frames included, and that nobody can take away.
  uint64_t room() const { return capacity_ - end_; }
  // Makes room() at least `bytes`. Errors: kResourceExhausted where the file system has not that much; it is as it was.
  absl::Status Reserve(uint64_t bytes);

  // What lies there; valid until Reserve() or destruction.
  absl::string_view At(uint64_t offset, uint64_t size) const { return {map_ + offset, size}; }
  // Of its rows.
  uint32_t schema() const { return reinterpret_cast<const LedgerHeader*>(map_)->schema; }
  // Where the next frame will be.
  uint64_t end() const { return end_; }
  uint64_t frames() const { return frames_; }
  // Whether Open() found an append that was under way when its writer died.
  bool torn() const { return torn_; }

 private:
  LedgerFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  LedgerHeader& header() { return *reinterpret_cast<LedgerHeader*>(map_); }
  // Allocates and maps so many bytes in all.
  absl::Status Extend(uint64_t size);
  absl::Status Map(uint64_t size);
  // What is wrong with the header, if something is.
  absl::Status CheckHeader(const LedgerIdentity& identity, uint64_t size);
  absl::Status CheckFrames(uint64_t size);

  UniqueFd fd_;
  std::string path_;
  char* map_ = nullptr;
  // Of the file and of its mapping; all of it is allocated.
  uint64_t capacity_ = 0;
  uint64_t end_ = 0;
  uint64_t frames_ = 0;
  bool torn_ = false;
};

}  // namespace berth

#endif  // DAEMON_LEDGER_LEDGER_FILE_H_
