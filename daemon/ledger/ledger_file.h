// LedgerFile: one file of the ledger, mapped into memory. An append copies the data and stores one 64-bit value,
// without a system call. Data that a process has stored is in the file even if the process dies. A crash of the machine
// does not matter: the ledger is only valid until the next boot.

#ifndef DAEMON_LEDGER_LEDGER_FILE_H_
#define DAEMON_LEDGER_LEDGER_FILE_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/os/unique_fd.h"
#include "daemon/ledger/ledger_format.h"

namespace berth {

// Identifies the daemon of a ledger.
struct LedgerIdentity {
  // Schema of the records.
  uint32_t schema = 0;
  // The earliest schema that Open() accepts; 0 for `schema` only.
  uint32_t earliest_schema = 0;
  uint64_t node = 0;
  uint64_t incarnation = 0;
  // The result of ReadBootId() (daemon/base/boot_id.h); at most 39 bytes.
  std::string boot;
};

// Movable; unmaps when destroyed. Thread-compatible. No other process writes to the file while this object exists.
class LedgerFile {
 public:
  // Creates an empty file at `path` and replaces an existing one. Errors: those of the file system.
  static absl::StatusOr<LedgerFile> Create(const std::string& path, const LedgerIdentity& identity);
  // Opens a file of any schema from the identity's earliest on, and verifies all of it. Errors: kNotFound; kDataLoss
  // for a truncated or damaged file; kFailedPrecondition for a file that is not a ledger, or of another identity or
  // version; each states the fault. Also the errors of the file system.
  static absl::StatusOr<LedgerFile> Open(const std::string& path, const LedgerIdentity& identity);
  // Opens a file by its fd, wherever the file is; `path` names it in errors.
  static absl::StatusOr<LedgerFile> Open(UniqueFd fd, const std::string& path, const LedgerIdentity& identity);
  // Returns the identity in the header of the file at `path`, without a check of the records. Errors: kNotFound;
  // kDataLoss if the header is damaged, or the file is not a ledger; those of the file system.
  static absl::StatusOr<LedgerIdentity> ReadIdentity(const std::string& path);
  // Whether another file has replaced the file open as `fd`. Errors: those of pread().
  static absl::StatusOr<bool> IsSuperseded(int fd);

  LedgerFile(LedgerFile&& other) noexcept;
  LedgerFile& operator=(LedgerFile&& other) noexcept;
  ~LedgerFile();

  // Appends a batch, which is in the file when this returns. Returns its offset in the file. Requires: capacity() >=
  // sizeof(LedgerFrame) + batch.size(), and batch.size() below 4 GiB.
  uint64_t Append(absl::string_view batch);

  // Visits every batch in order, with its offset.
  void ForEach(absl::FunctionRef<void(uint64_t offset, absl::string_view batch)> visit) const;

  // Checks that the file has what this object wrote: a process other than the owner may have changed it in place. A
  // truncated file is extended, so that its mapping can be used. Errors: kDataLoss naming the damage; those of the file
  // system.
  absl::Status CheckContent();

  // Makes IsSuperseded() return true from now on.
  void Supersede();
  // Whether `path` names this file.
  bool IsAt(const std::string& path) const;
  // Open during the lifetime of this object.
  int fd() const { return fd_.get(); }

  // Bytes that can be appended, including frames. They are allocated, so no other process can take them.
  uint64_t capacity() const { return capacity_ - end_; }
  // Extends capacity() to at least `bytes`. Errors: kResourceExhausted if the file system has no space; the file is
  // then unchanged.
  absl::Status Reserve(uint64_t bytes);

  // The bytes at `offset`; valid until Reserve() or destruction.
  absl::string_view At(uint64_t offset, uint64_t size) const { return {map_ + offset, size}; }
  // Schema of the records in the file.
  uint32_t schema() const { return reinterpret_cast<const LedgerHeader*>(map_)->schema; }
  // Offset of the next frame.
  uint64_t end() const { return end_; }
  uint64_t frames() const { return frames_; }
  // Whether Open() found an append that was unfinished when its writer died.
  bool torn() const { return torn_; }

 private:
  LedgerFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  LedgerHeader& header() { return *reinterpret_cast<LedgerHeader*>(map_); }
  // Allocates and maps `size` bytes in total.
  absl::Status Extend(uint64_t size);
  absl::Status Map(uint64_t size);
  // Errors: the fault of the header.
  absl::Status CheckHeader(const LedgerIdentity& identity, uint64_t size);
  absl::Status CheckFrames(uint64_t size);
  // Returns the number of frames before end_. Errors: kDataLoss naming the first damaged frame.
  absl::StatusOr<uint64_t> CountFrames() const;

  UniqueFd fd_;
  std::string path_;
  char* map_ = nullptr;
  // Size of the file and of its mapping; all of it is allocated.
  uint64_t capacity_ = 0;
  uint64_t end_ = 0;
  uint64_t frames_ = 0;
  bool torn_ = false;
};

}  // namespace berth

#endif  // DAEMON_LEDGER_LEDGER_FILE_H_
