#include "daemon/ledger/ledger.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/error.h"
#include "common/os_error.h"
#include "common/status_macros.h"

namespace berth {
namespace {

// A row's bytes in a batch are its content and so much.
constexpr uint64_t kRowHead = 24;
// The log is written anew when it is so many times what its rows take, and so much more: then what is written once more
// is a small part of what was written since.
constexpr uint64_t kStaleFactor = 4;
constexpr uint64_t kStaleBytes = uint64_t{1} << 20;
// Of the frames of a log that is written anew.
constexpr uint64_t kFrameBytes = uint64_t{1} << 20;
constexpr absl::Duration kRoomPause = absl::Seconds(1);

std::string PathOf(const std::string& folder) { return absl::StrCat(folder, "/", Ledger::kName); }
std::string NewPathOf(const std::string& path) { return path + ".new"; }

}  // namespace

absl::StatusOr<std::unique_ptr<Ledger>> Ledger::Create(const std::string& folder,
                                                       const LedgerIdentity& identity) {
  const std::string path = PathOf(folder);
  BERTH_ASSIGN_OR_RETURN(LedgerFile file, LedgerFile::Create(path, identity));
  std::unique_ptr<Ledger> ledger(new Ledger(path, identity, std::move(file)));
  BERTH_RETURN_IF_ERROR(ledger->MakeRoom(0));
  return ledger;
}

absl::StatusOr<std::unique_ptr<Ledger>> Ledger::Open(const std::string& folder,
                                                     const LedgerIdentity& identity) {
  const std::string path = PathOf(folder);
  // Of one who died while writing it.
  ::unlink(NewPathOf(path).c_str());
  absl::StatusOr<LedgerFile> file = LedgerFile::Open(path, identity);
  if (!file.ok()) return Fault(folder, file.status());
  std::unique_ptr<Ledger> ledger(new Ledger(path, identity, *std::move(file)));
  ledger->file_.ForEach([&](uint64_t offset, absl::string_view batch) { ledger->Note(offset, batch); });
  // Where there is no room CheckRoom() says so.
  ledger->MakeRoom(0).IgnoreError();
  return ledger;
}

absl::Status Ledger::Fault(const std::string& folder, const absl::Status& why) {
  if (absl::IsResourceExhausted(why)) return why;
  return Refuse(Reason::kLedgerUnreadable, "ledger {path}: {why}; nothing is granted until `berth reset`",
                {{"path", PathOf(folder)}, {"why", why.message()}});
}

void Ledger::Note(uint64_t offset, absl::string_view batch) {
  const auto visit = [&](const RowKey& key, std::optional<absl::string_view> content) {
    if (!content.has_value()) {
      const auto it = places_.find(key);
      if (it == places_.end()) return;
      row_bytes_ -= kRowHead + it->second.size;
      places_.erase(it);
      return;
    }
    const auto [it, added] = places_.try_emplace(key);
    if (!added) row_bytes_ -= kRowHead + it->second.size;
    it->second = {.offset = offset + static_cast<uint64_t>(content->data() - batch.data()),
                  .size = static_cast<uint32_t>(content->size())};
    row_bytes_ += kRowHead + it->second.size;
  };
  // Its checksum was right: it is what a RowBatch was.
  RowBatch::Walk(batch, visit).IgnoreError();
}

absl::Status Ledger::Commit(const RowBatch& changes) {
  different_.Clear();
  changes.ForEach([this](const RowKey& key, std::optional<absl::string_view> content) {
    const auto it = places_.find(key);
    if (!content.has_value()) {
      if (it != places_.end()) different_.Erase(key);
    } else if (it == places_.end() || file_.At(it->second.offset, it->second.size) != *content) {
      different_.Put(key, *content);
    }
  });
  if (different_.empty()) return absl::OkStatus();
  const uint64_t bytes = sizeof(LedgerFrame) + different_.bytes().size();
  // Before the commit, so that its bytes come out of what was kept for it only where no others are to be had.
  if (file_.room() < headroom() + bytes) BERTH_RETURN_IF_ERROR(MakeRoom(bytes));
  Note(file_.Append(different_.bytes()), different_.bytes());
  return absl::OkStatus();
}

absl::Status Ledger::CheckRoom() { return Require(headroom()); }

absl::Status Ledger::CheckRoomToLook() { return Require(headroom() - kHeadroom / 2); }

absl::Status Ledger::Require(uint64_t room) {
  if (file_.room() >= room) return absl::OkStatus();
  const absl::Status made = Grow(0);
  if (file_.room() >= room) return absl::OkStatus();
  return RefuseWithRetry(Reason::kLedgerFull, kRoomPause, "ledger {path}: {why}",
                         {{"path", path_}, {"why", made.message()}});
}

absl::Status Ledger::MakeRoom(uint64_t bytes) {
  return Grow(bytes).ok() ? absl::OkStatus() : file_.Reserve(bytes);
}

absl::Status Ledger::Grow(uint64_t bytes) {
  if (MostlyStale() && Compact().ok() && file_.room() >= headroom() + bytes) return absl::OkStatus();
  return file_.Reserve(headroom() + bytes);
}

bool Ledger::MostlyStale() const { return file_.end() > kStaleBytes + kStaleFactor * row_bytes_; }

absl::Status Ledger::Compact() {
  return Replace(row_bytes_, [this](Visit visit) {
    for (const auto& [key, place] : places_) visit(key, file_.At(place.offset, place.size));
  });
}

absl::Status Ledger::Migrate(const Rows& rows) {
  uint64_t bytes = 0;
  for (const auto& [key, content] : rows) bytes += kRowHead + content.size();
  return Replace(bytes, [&rows](Visit visit) {
    for (const auto& [key, content] : rows) visit(key, content);
  });
}

absl::Status Ledger::Replace(uint64_t bytes, absl::FunctionRef<void(Visit)> for_each) {
  const std::string path = NewPathOf(path_);
  BERTH_ASSIGN_OR_RETURN(LedgerFile file, LedgerFile::Create(path, identity_));
  Ledger next(path_, identity_, std::move(file));
  // As much again as the rows take is the headroom's.
  absl::Status status = next.file_.Reserve(bytes + kHeadroom + bytes);
  if (status.ok()) {
    RowBatch batch;
    const auto append = [&] {
      next.Note(next.file_.Append(batch.bytes()), batch.bytes());
      batch.Clear();
    };
    for_each([&](const RowKey& key, absl::string_view content) {
      batch.Put(key, content);
      if (batch.bytes().size() >= kFrameBytes) append();
    });
    if (!batch.empty()) append();
    if (::rename(path.c_str(), path_.c_str()) < 0) status = OsError(absl::StrCat("rename ", path), errno);
  }
  if (!status.ok()) {
    ::unlink(path.c_str());
    return status;
  }
  std::swap(file_, next.file_);
  std::swap(places_, next.places_);
  row_bytes_ = next.row_bytes_;
  return absl::OkStatus();
}

RowViews Ledger::rows() const {
  RowViews rows;
  rows.reserve(places_.size());
  for (const auto& [key, place] : places_) rows.emplace_back(key, file_.At(place.offset, place.size));
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return rows;
}

Rows Ledger::AllRows() const {
  const RowViews views = rows();
  return Rows(views.begin(), views.end());
}

}  // namespace berth
