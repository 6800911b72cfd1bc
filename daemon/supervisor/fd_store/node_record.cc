#include "daemon/supervisor/fd_store/node_record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/os/file_io.h"
#include "common/os/os_error.h"
#include "common/os/process_start.h"
#include "common/status_macros.h"
#include "daemon/base/boot_id.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace berth {
namespace {

constexpr char kNeverServed[] = "no daemon has served in this folder";
// Stands for the content of anything but a regular file.
constexpr char kOther[] = "no file";

}  // namespace

absl::string_view NodeRecord::BytesOf(const Content& content) {
  return {reinterpret_cast<const char*>(&content), sizeof(content)};
}

uint64_t NodeRecord::ChecksumOf(const Content& content) {
  return XXH3_64bits(&content, offsetof(Content, checksum));
}

std::string NodeRecord::Seal(std::string bytes) {
  Content content;
  memcpy(&content, bytes.data(), std::min(bytes.size(), sizeof(content)));
  content.checksum = ChecksumOf(content);
  return std::string(BytesOf(content));
}

absl::StatusOr<NodeRecord> NodeRecord::Open(const std::string& folder) {
  NodeRecord record(absl::StrCat(folder, "/", kName));
  std::string bytes;
  if (const UniqueFd fd(::open(record.path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)); fd) {
    struct stat info;
    if (::fstat(fd.get(), &info) < 0) return OsError(absl::StrCat("stat ", record.path_), errno);
    bytes = kOther;
    if (S_ISREG(info.st_mode)) {
      BERTH_ASSIGN_OR_RETURN(bytes, ReadToEnd(fd.get(), record.path_, sizeof(Content) + 1));
    }
  } else if (errno == ELOOP) {
    bytes = kOther;
  } else if (errno != ENOENT) {
    return OsError(absl::StrCat("open ", record.path_), errno);
  }
  Content read;
  memcpy(&read, bytes.data(), std::min(bytes.size(), sizeof(read)));
  const bool sealed = bytes.size() == sizeof(Content) && read.magic == Content::kMagic &&
                      read.checksum == ChecksumOf(read);
  const bool earlier = bytes.size() == offsetof(Content, checksum) && read.magic == Content::kEarlierMagic;
  if ((sealed || earlier) && read.node != 0) {
    record.content_ = read;
  } else if (bytes.find_first_not_of('\0') == std::string::npos) {
    // An earlier program that was killed at its first start leaves an empty file or zeros.
    record.fault_ = absl::NotFoundError(kNeverServed);
  } else {
    record.fault_ = absl::DataLossError(absl::StrCat(record.path_, " is damaged"));
  }
  return record;
}

uint64_t NodeRecord::ReadNode(const std::string& folder) {
  const absl::StatusOr<NodeRecord> record = Open(folder);
  return record.ok() ? record->content_.node : 0;
}

absl::Status NodeRecord::Check(uint64_t node) const {
  BERTH_RETURN_IF_ERROR(fault_);
  BERTH_ASSIGN_OR_RETURN(const std::string boot, ReadBootId());
  const std::string of(content_.boot, strnlen(content_.boot, sizeof(content_.boot)));
  if (of != boot) return absl::FailedPreconditionError("the previous daemon served in another boot");
  if (content_.node != node) return absl::DataLossError(absl::StrCat(path_, " is the record of another node"));
  return content_.begun == 0 ? absl::NotFoundError(kNeverServed) : absl::OkStatus();
}

absl::StatusOr<bool> NodeRecord::PidsAreOurs() const {
  BERTH_ASSIGN_OR_RETURN(const uint64_t pids, ReadPidNamespace());
  return pids == content_.pids;
}

void NodeRecord::ContinueDevices(StatePageLayout* page) const {
  for (uint32_t ordinal = 0; ordinal < kMaxDeviceOrdinals; ++ordinal) {
    const Content::Device& from = content_.devices[ordinal];
    DeviceEntry& to = page->devices[ordinal];
    // Adds one more than needed: the record may lack the last change. Each start of a device adds one by itself.
    if (from.generation != 0) to.generation = from.generation + 1;
    if (from.context_generation != 0) to.context_generation = from.context_generation + 2;
  }
}

absl::Status NodeRecord::Begin(uint64_t node, uint64_t incarnation, bool begun) {
  BERTH_ASSIGN_OR_RETURN(const std::string boot, ReadBootId());
  BERTH_ASSIGN_OR_RETURN(const uint64_t pids, ReadPidNamespace());
  content_.magic = Content::kMagic;
  content_.node = node;
  content_.pids = pids;
  memset(content_.boot, 0, sizeof(content_.boot));
  boot.copy(content_.boot, sizeof(content_.boot) - 1);
  content_.incarnation = incarnation;
  content_.begun = begun ? 1 : 0;
  content_.checksum = ChecksumOf(content_);
  begun_ = true;
  const bool usable = std::exchange(fault_, absl::OkStatus()).ok();
  const absl::Status replaced = Replace();
  // A full disk has no space for a second file.
  return absl::IsResourceExhausted(replaced) && usable ? Overwrite() : replaced;
}

void NodeRecord::Update(const StatePageLayout& page) {
  if (!begun_) return;
  Content next = content_;
  next.epoch = page.epoch;
  for (uint32_t ordinal = 0; ordinal < kMaxDeviceOrdinals; ++ordinal) {
    next.devices[ordinal].generation = page.devices[ordinal].generation;
    next.devices[ordinal].context_generation = page.devices[ordinal].context_generation;
  }
  next.checksum = ChecksumOf(next);
  if (next.checksum == content_.checksum) return;
  content_ = next;
  // One write within a page of memory: a killed process leaves the old or the new content. A short write is damage,
  // which Repair() mends.
  if (fd_) [[maybe_unused]] const ssize_t written = ::pwrite(fd_.get(), &content_, sizeof(content_), 0);
}

bool NodeRecord::IsWhole() const {
  struct stat mine;
  struct stat there;
  if (!fd_ || ::fstat(fd_.get(), &mine) < 0 || ::lstat(path_.c_str(), &there) < 0) return false;
  if (mine.st_dev != there.st_dev || mine.st_ino != there.st_ino) return false;
  if (mine.st_size != static_cast<off_t>(sizeof(Content))) return false;
  Content read;
  return ::pread(fd_.get(), &read, sizeof(read), 0) == static_cast<ssize_t>(sizeof(read)) &&
         BytesOf(read) == BytesOf(content_);
}

absl::StatusOr<bool> NodeRecord::Repair() {
  if (!begun_ || IsWhole()) return false;
  BERTH_RETURN_IF_ERROR(Replace());
  return true;
}

absl::Status NodeRecord::Replace() {
  const std::string beside = path_ + ".new";
  if (::unlink(beside.c_str()) < 0 && errno != ENOENT) return OsError(absl::StrCat("unlink ", beside), errno);
  UniqueFd fd(::open(beside.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return OsError(absl::StrCat("open ", beside), errno);
  absl::Cleanup remove = [&beside] { ::unlink(beside.c_str()); };
  BERTH_RETURN_IF_ERROR(WriteAll(fd.get(), BytesOf(content_), beside));
  if (::rename(beside.c_str(), path_.c_str()) < 0) return OsError(absl::StrCat("rename ", beside), errno);
  std::move(remove).Cancel();
  fd_ = std::move(fd);
  return absl::OkStatus();
}

absl::Status NodeRecord::Overwrite() {
  UniqueFd fd(::open(path_.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd) return OsError(absl::StrCat("open ", path_), errno);
  if (::pwrite(fd.get(), &content_, sizeof(content_), 0) != static_cast<ssize_t>(sizeof(content_))) {
    return OsError(absl::StrCat("write ", path_), errno);
  }
  fd_ = std::move(fd);
  return absl::OkStatus();
}

}  // namespace berth
