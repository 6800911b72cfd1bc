#include "daemon/supervisor/fd_store/store_record.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "common/os/memfd.h"
#include "common/os/os_error.h"
#include "common/os/process_start.h"
#include "common/status_macros.h"
#include "daemon/base/boot_id.h"

namespace berth {
namespace {

using fd_store::Key;

}  // namespace

StoreRecord::StoreRecord(Layout* layout) : layout_(layout) {
  for (size_t i = 0; i < kPlaces; ++i) {
    const Layout::Place& place = layout_->places[i];
    const auto kind = static_cast<fd_store::Kind>(place.kind.load());
    if (place.kind == 0 || !places_.emplace(fd_store::KeyOf(kind, place.id), i).second) free_.insert(i);
  }
}

StoreRecord::StoreRecord(StoreRecord&& other) noexcept
    : layout_(std::exchange(other.layout_, nullptr)),
      places_(std::move(other.places_)),
      free_(std::move(other.free_)) {}

StoreRecord::~StoreRecord() {
  if (layout_ != nullptr) ::munmap(layout_, sizeof(Layout));
}

absl::StatusOr<std::pair<UniqueFd, StoreRecord>> StoreRecord::Create(uint64_t node) {
  BERTH_ASSIGN_OR_RETURN(const std::string boot, ReadBootId());
  BERTH_ASSIGN_OR_RETURN(const uint64_t pids, ReadPidNamespace());
  BERTH_ASSIGN_OR_RETURN(UniqueFd fd, CreateMemfd("berth-record", sizeof(Layout)));
  const uint64_t magic = Layout::kMagic;
  if (::pwrite(fd.get(), &magic, sizeof(magic), 0) != sizeof(magic)) return OsError("pwrite(record)", errno);
  BERTH_RETURN_IF_ERROR(SealMemfd(fd.get()));
  BERTH_ASSIGN_OR_RETURN(StoreRecord record, Map(fd.get()));
  record.layout_->node = node;
  record.layout_->pids = pids;
  boot.copy(record.layout_->boot, sizeof(record.layout_->boot) - 1);
  return std::make_pair(std::move(fd), std::move(record));
}

absl::StatusOr<StoreRecord> StoreRecord::Map(int fd) {
  struct stat info;
  if (::fstat(fd, &info) < 0) return OsError("fstat(record)", errno);
  if (info.st_size != sizeof(Layout)) {
    return absl::InvalidArgumentError(absl::StrCat("the store record has ", info.st_size, " bytes"));
  }
  void* const at = ::mmap(nullptr, sizeof(Layout), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return OsError("mmap(record)", errno);
  StoreRecord record(static_cast<Layout*>(at));
  if (record.layout_->magic != Layout::kMagic) return absl::InvalidArgumentError("not a store record");
  return record;
}

absl::Status StoreRecord::Check(uint64_t node) const {
  BERTH_ASSIGN_OR_RETURN(const std::string boot, ReadBootId());
  BERTH_ASSIGN_OR_RETURN(const uint64_t pids, ReadPidNamespace());
  const std::string of(layout_->boot, strnlen(layout_->boot, sizeof(layout_->boot)));
  if (of != boot) return absl::FailedPreconditionError("the store record is of another boot");
  if (layout_->pids != pids) return absl::FailedPreconditionError("the store record is of another PID namespace");
  if (layout_->node != node) return absl::FailedPreconditionError("the store record is of another node");
  if (layout_->over != 0) return absl::FailedPreconditionError("the store record's daemon has shut down cleanly");
  if (layout_->begun == 0) return absl::FailedPreconditionError("the store record's daemon never served");
  return absl::OkStatus();
}

void StoreRecord::Begin(uint64_t incarnation) {
  layout_->begun = 0;
  layout_->incarnation = incarnation;
}

bool StoreRecord::Add(Key key) {
  if (places_.contains(key)) return true;
  if (free_.empty()) return false;
  const size_t at = *free_.begin();
  free_.erase(free_.begin());
  places_.emplace(key, at);
  layout_->places[at].id = key.id;
  layout_->places[at].kind = static_cast<uint64_t>(key.kind);
  return true;
}

void StoreRecord::Remove(Key key) {
  const auto found = places_.find(key);
  if (found == places_.end()) return;
  layout_->places[found->second].kind = 0;
  free_.insert(found->second);
  places_.erase(found);
}

}  // namespace berth
