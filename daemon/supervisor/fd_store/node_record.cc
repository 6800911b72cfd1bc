#include "daemon/supervisor/fd_store/node_record.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/os/os_error.h"
#include "common/os/process_start.h"
#include "common/status_macros.h"
#include "daemon/base/boot_id.h"

namespace berth {

NodeRecord::NodeRecord(std::string path, UniqueFd fd, Layout* layout)
    : path_(std::move(path)), fd_(std::move(fd)), layout_(layout) {}

NodeRecord::NodeRecord(NodeRecord&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::move(other.fd_)), layout_(std::exchange(other.layout_, nullptr)) {}

NodeRecord::~NodeRecord() {
  if (layout_ != nullptr) ::munmap(layout_, sizeof(Layout));
}

absl::StatusOr<NodeRecord::Layout*> NodeRecord::MapFile(const std::string& path, int fd) {
  // Allocates first: a write to a mapped page without space in the file system is fatal.
  if (const int error = ::posix_fallocate(fd, 0, sizeof(Layout)); error != 0) {
    return OsError(absl::StrCat("allocate space for ", path), error);
  }
  void* const at = ::mmap(nullptr, sizeof(Layout), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return OsError(absl::StrCat("mmap ", path), errno);
  return static_cast<Layout*>(at);
}

absl::StatusOr<NodeRecord> NodeRecord::Open(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kName);
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return OsError(absl::StrCat("open ", path), errno);
  struct stat info;
  if (::fstat(fd.get(), &info) < 0) return OsError(absl::StrCat("stat ", path), errno);
  const auto damaged = [&] {
    return absl::FailedPreconditionError(
        absl::StrCat(path,
                     " is not a Berth daemon's node record, so its leases cannot be resumed: remove the file to start "
                     "without them"));
  };
  if (info.st_size != 0 && info.st_size != sizeof(Layout)) return damaged();
  BERTH_ASSIGN_OR_RETURN(Layout* const layout, MapFile(path, fd.get()));
  NodeRecord record(path, std::move(fd), layout);
  // Zeroes: created, and not begun yet.
  if (layout->magic != Layout::kMagic && layout->magic != 0) return damaged();
  return record;
}

absl::Status NodeRecord::Check(uint64_t node) const {
  if (layout_->magic == 0 || layout_->begun == 0)
    return absl::FailedPreconditionError("no daemon has served in this folder");
  BERTH_ASSIGN_OR_RETURN(const std::string boot, ReadBootId());
  const std::string of(layout_->boot, strnlen(layout_->boot, sizeof(layout_->boot)));
  if (of != boot) return absl::FailedPreconditionError("the previous daemon served in another boot");
  if (layout_->node != node) return absl::FailedPreconditionError("the previous daemon belonged to another node");
  return absl::OkStatus();
}

absl::StatusOr<bool> NodeRecord::PidsAreOurs() const {
  BERTH_ASSIGN_OR_RETURN(const uint64_t pids, ReadPidNamespace());
  return pids == layout_->pids;
}

void NodeRecord::ContinueDevices(StatePageLayout* page) const {
  for (uint32_t ordinal = 0; ordinal < kMaxDeviceOrdinals; ++ordinal) {
    const Layout::Device& from = layout_->devices[ordinal];
    DeviceEntry& to = page->devices[ordinal];
    // Adds one more than needed: the record may lack the last change. Each start of a device adds one by itself.
    if (from.generation != 0) to.generation = from.generation + 1;
    if (from.context_generation != 0) to.context_generation = from.context_generation + 2;
  }
}

absl::Status NodeRecord::Begin(uint64_t node, uint64_t incarnation, bool begun) {
  BERTH_ASSIGN_OR_RETURN(const std::string boot, ReadBootId());
  BERTH_ASSIGN_OR_RETURN(const uint64_t pids, ReadPidNamespace());
  const std::string of(layout_->boot, strnlen(layout_->boot, sizeof(layout_->boot)));
  if (layout_->magic != Layout::kMagic || layout_->node != node || layout_->incarnation != incarnation || of != boot) {
    layout_->magic = 0;
    layout_->node = node;
    memset(layout_->boot, 0, sizeof(layout_->boot));
    boot.copy(layout_->boot, sizeof(layout_->boot) - 1);
    layout_->incarnation = incarnation;
  }
  layout_->pids = pids;
  layout_->begun = begun ? 1 : 0;
  layout_->magic = Layout::kMagic;
  return absl::OkStatus();
}

void NodeRecord::Update(const StatePageLayout& page) {
  const auto copy = [](uint64_t value, std::atomic<uint64_t>& to) {
    if (to.load(std::memory_order_relaxed) != value) to = value;
  };
  copy(page.epoch, layout_->epoch);
  for (uint32_t ordinal = 0; ordinal < kMaxDeviceOrdinals; ++ordinal) {
    const DeviceEntry& from = page.devices[ordinal];
    Layout::Device& to = layout_->devices[ordinal];
    copy(from.generation, to.generation);
    copy(from.context_generation, to.context_generation);
  }
}

absl::Status NodeRecord::Relink() {
  struct stat mine;
  struct stat there;
  if (::fstat(fd_.get(), &mine) < 0) return OsError(absl::StrCat("stat ", path_), errno);
  const bool same = ::lstat(path_.c_str(), &there) == 0 && mine.st_dev == there.st_dev && mine.st_ino == there.st_ino;
  if (same) return absl::OkStatus();
  const std::string beside = path_ + ".new";
  ::unlink(beside.c_str());
  UniqueFd fd(::open(beside.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return OsError(absl::StrCat("open ", beside), errno);
  if (::pwrite(fd.get(), layout_, sizeof(Layout), 0) != static_cast<ssize_t>(sizeof(Layout))) {
    return OsError(absl::StrCat("write ", beside), errno);
  }
  BERTH_ASSIGN_OR_RETURN(Layout* const layout, MapFile(beside, fd.get()));
  ::munmap(std::exchange(layout_, layout), sizeof(Layout));
  fd_ = std::move(fd);
  if (::rename(beside.c_str(), path_.c_str()) < 0) return OsError(absl::StrCat("rename ", beside), errno);
  return absl::OkStatus();
}

}  // namespace berth
