#include "daemon/ledger/ledger.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <vector>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/os/os_error.h"
#include "common/status_macros.h"

namespace berth {
namespace {

// A record takes its content and this many bytes in a batch.
constexpr uint64_t kRecordHead = 24;
// The ledger rewrites the log when its size exceeds kStaleFactor times its records plus kStaleBytes. A rewrite then
// costs little compared with the writes since the last one.
constexpr uint64_t kStaleFactor = 4;
constexpr uint64_t kStaleBytes = uint64_t{1} << 20;
// Size of the frames of a rewritten log.
constexpr uint64_t kFrameBytes = uint64_t{1} << 20;
constexpr absl::Duration kCapacityPause = absl::Seconds(1);

std::string PathOf(const std::string& folder) { return absl::StrCat(folder, "/", Ledger::kName); }
std::string NewPathOf(const std::string& path) { return path + ".new"; }

}  // namespace

absl::StatusOr<std::unique_ptr<Ledger>> Ledger::Create(const std::string& folder,
                                                       const LedgerIdentity& identity) {
  const std::string path = PathOf(folder);
  BERTH_ASSIGN_OR_RETURN(LedgerFile file, LedgerFile::Create(path, identity));
  std::unique_ptr<Ledger> ledger(new Ledger(path, identity, std::move(file)));
  BERTH_RETURN_IF_ERROR(ledger->FreeCapacity(0));
  return ledger;
}

absl::StatusOr<std::unique_ptr<Ledger>> Ledger::Open(const std::string& folder,
                                                     const LedgerIdentity& identity) {
  const std::string path = PathOf(folder);
  // Left by a process that died while it wrote the file.
  ::unlink(NewPathOf(path).c_str());
  return Load(LedgerFile::Open(path, identity), folder, identity);
}

absl::StatusOr<std::unique_ptr<Ledger>> Ledger::Open(UniqueFd file, const std::string& folder,
                                                     const LedgerIdentity& identity) {
  return Load(LedgerFile::Open(std::move(file), PathOf(folder), identity), folder, identity);
}

absl::StatusOr<std::unique_ptr<Ledger>> Ledger::Load(absl::StatusOr<LedgerFile> file, const std::string& folder,
                                                     const LedgerIdentity& identity) {
  if (!file.ok()) return Fault(folder, file.status());
  std::unique_ptr<Ledger> ledger(new Ledger(PathOf(folder), identity, *std::move(file)));
  ledger->file_.ForEach([&](uint64_t offset, absl::string_view batch) { ledger->Record(offset, batch); });
  // CheckCapacity() reports a lack of capacity.
  ledger->FreeCapacity(0).IgnoreError();
  return ledger;
}

absl::Status Ledger::Fault(const std::string& folder, const absl::Status& why) {
  if (absl::IsResourceExhausted(why)) return why;
  return Refuse(Reason::kLedgerUnreadable, "ledger {path}: {why}; the daemon grants nothing until `berth reset`",
                {{"path", PathOf(folder)}, {"why", why.message()}});
}

void Ledger::Record(uint64_t offset, absl::string_view batch) {
  const auto visit = [&](const RecordKey& key, std::optional<absl::string_view> content) {
    if (!content.has_value()) {
      const auto it = places_.find(key);
      if (it == places_.end()) return;
      record_bytes_ -= kRecordHead + it->second.size;
      places_.erase(it);
      return;
    }
    const auto [it, added] = places_.try_emplace(key);
    if (!added) record_bytes_ -= kRecordHead + it->second.size;
    it->second = {.offset = offset + static_cast<uint64_t>(content->data() - batch.data()),
                  .size = static_cast<uint32_t>(content->size())};
    record_bytes_ += kRecordHead + it->second.size;
  };
  // The checksum was correct, so the batch is a valid RecordBatch.
  RecordBatch::Walk(batch, visit).IgnoreError();
}

absl::Status Ledger::Commit(const RecordBatch& changes) {
  different_.Clear();
  changes.ForEach([this](const RecordKey& key, std::optional<absl::string_view> content) {
    const auto it = places_.find(key);
    if (!content.has_value()) {
      if (it != places_.end()) different_.Erase(key);
    } else if (it == places_.end() || file_.At(it->second.offset, it->second.size) != *content) {
      different_.Put(key, *content);
    }
  });
  if (different_.empty()) return absl::OkStatus();
  const uint64_t bytes = sizeof(LedgerFrame) + different_.bytes().size();
  // Reserve before the commit, so that the commit uses the headroom only if no other capacity is available.
  if (file_.capacity() < headroom() + bytes) BERTH_RETURN_IF_ERROR(FreeCapacity(bytes));
  Record(file_.Append(different_.bytes()), different_.bytes());
  return absl::OkStatus();
}

absl::Status Ledger::CheckCapacity() { return Require(headroom()); }

absl::Status Ledger::CheckCapacityToLook() { return Require(headroom() - kHeadroom / 2); }

absl::Status Ledger::Require(uint64_t capacity) {
  if (file_.capacity() >= capacity) return absl::OkStatus();
  const absl::Status made = Grow(0);
  if (file_.capacity() >= capacity) return absl::OkStatus();
  return RefuseWithRetry(Reason::kLedgerFull, kCapacityPause,
                         "the daemon's ledger {path} of {current} bytes cannot reserve {requested} more: {why}; free "
                         "space there, or raise the daemon's limit (LimitFSIZE= of its service)",
                         {{"path", path_}, {"current", file_.end()}, {"requested", capacity}, {"why", made.message()}});
}

absl::Status Ledger::FreeCapacity(uint64_t bytes) {
  return Grow(bytes).ok() ? absl::OkStatus() : file_.Reserve(bytes);
}

absl::Status Ledger::Grow(uint64_t bytes) {
  if (MostlyStale() && Compact().ok() && file_.capacity() >= headroom() + bytes) return absl::OkStatus();
  return file_.Reserve(headroom() + bytes);
}

bool Ledger::MostlyStale() const { return file_.end() > kStaleBytes + kStaleFactor * record_bytes_; }

absl::Status Ledger::RestoreFile() { return file_.IsAt(path_) ? absl::OkStatus() : Compact(); }

absl::Status Ledger::Compact() {
  return Replace(record_bytes_, [this](Visit visit) {
    BERTH_RETURN_IF_ERROR(CheckFile());
    for (const auto& [key, place] : places_) visit(key, file_.At(place.offset, place.size));
    return absl::OkStatus();
  });
}

absl::Status Ledger::Migrate(const LedgerRecords& records) {
  uint64_t bytes = 0;
  for (const auto& [key, content] : records) bytes += kRecordHead + content.size();
  return Replace(bytes, [&records](Visit visit) {
    for (const auto& [key, content] : records) visit(key, content);
    return absl::OkStatus();
  });
}

absl::Status Ledger::Replace(uint64_t bytes, absl::FunctionRef<absl::Status(Visit)> for_each) {
  const std::string path = NewPathOf(path_);
  BERTH_ASSIGN_OR_RETURN(LedgerFile file, LedgerFile::Create(path, identity_));
  Ledger next(path_, identity_, std::move(file));
  // The second `bytes` is part of the headroom.
  absl::Status status = next.file_.Reserve(bytes + kHeadroom + bytes);
  if (status.ok()) {
    RecordBatch batch;
    const auto append = [&] {
      next.Record(next.file_.Append(batch.bytes()), batch.bytes());
      batch.Clear();
    };
    status = for_each([&](const RecordKey& key, absl::string_view content) {
      batch.Put(key, content);
      if (batch.bytes().size() >= kFrameBytes) append();
    });
    if (!batch.empty()) append();
    if (status.ok()) status = Install(path, next.file_);
  }
  if (!status.ok()) {
    ::unlink(path.c_str());
    return status;
  }
  std::swap(file_, next.file_);
  std::swap(places_, next.places_);
  record_bytes_ = next.record_bytes_;
  return absl::OkStatus();
}

// A later broker continues with the last file that is held and not superseded. Until the rename succeeds, both files
// hold the same records.
absl::Status Ledger::Install(const std::string& path, LedgerFile& next) {
  if (holder_ != nullptr) BERTH_RETURN_IF_ERROR(holder_->Hold(next.fd()));
  if (::rename(path.c_str(), path_.c_str()) < 0) {
    const absl::Status failed = OsError(absl::StrCat("rename ", path), errno);
    next.Supersede();
    if (holder_ != nullptr) holder_->DropLast();
    return failed;
  }
  file_.Supersede();
  if (holder_ != nullptr) holder_->DropEarlier();
  return absl::OkStatus();
}

RecordViews Ledger::records() const {
  RecordViews records;
  records.reserve(places_.size());
  for (const auto& [key, place] : places_) records.emplace_back(key, file_.At(place.offset, place.size));
  std::sort(records.begin(), records.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return records;
}

LedgerRecords Ledger::AllRecords() const {
  const RecordViews views = records();
  return LedgerRecords(views.begin(), views.end());
}

}  // namespace berth
