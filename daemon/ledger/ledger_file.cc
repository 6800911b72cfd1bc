#include "daemon/ledger/ledger_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>

#include "absl/strings/str_cat.h"
#include "common/os/os_error.h"
#include "common/status_macros.h"

// XXH3 of xxHash: one call per commit, over a few hundred bytes, in some ten nanoseconds. The checksum finds damage; it
// is no protection against forgery, because the folder belongs to the daemon.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace berth {
namespace {

// A file grows by at least this many bytes, so that it rarely grows.
constexpr uint64_t kStep = uint64_t{1} << 20;
constexpr uint64_t kLengthBits = 48;
constexpr uint64_t kLengthMask = (uint64_t{1} << kLengthBits) - 1;

// Packs a length and its checksum in the upper bits into one 64-bit value, which is stored atomically.
uint64_t Seal(uint64_t length) {
  return length | (XXH3_64bits(&length, sizeof(length)) & ~kLengthMask);
}

uint64_t ChecksumOf(const LedgerHeader& header) {
  return XXH3_64bits(&header, offsetof(LedgerHeader, checksum));
}

uint32_t ChecksumOf(const LedgerFrame& frame, absl::string_view batch) {
  const uint64_t head = XXH3_64bits(&frame, offsetof(LedgerFrame, checksum));
  return static_cast<uint32_t>(XXH3_64bits_withSeed(batch.data(), batch.size(), head));
}

LedgerHeader HeaderOf(const LedgerIdentity& identity) {
  LedgerHeader header = {
      .schema = identity.schema, .node = identity.node, .incarnation = identity.incarnation};
  identity.boot.copy(header.boot.data(), header.boot.size() - 1);
  header.checksum = ChecksumOf(header);
  header.committed = Seal(sizeof(header));
  return header;
}

}  // namespace

LedgerFile::LedgerFile(LedgerFile&& other) noexcept
    : fd_(std::move(other.fd_)),
      path_(std::move(other.path_)),
      map_(std::exchange(other.map_, nullptr)),
      capacity_(std::exchange(other.capacity_, 0)),
      end_(other.end_),
      frames_(other.frames_),
      torn_(other.torn_) {}

LedgerFile& LedgerFile::operator=(LedgerFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  std::swap(map_, other.map_);
  std::swap(capacity_, other.capacity_);
  std::swap(end_, other.end_);
  std::swap(frames_, other.frames_);
  std::swap(torn_, other.torn_);
  return *this;
}

LedgerFile::~LedgerFile() {
  if (map_ != nullptr) ::munmap(map_, capacity_);
}

absl::StatusOr<LedgerFile> LedgerFile::Create(const std::string& path, const LedgerIdentity& identity) {
  // Another process's mapping of the old file stays valid.
  if (::unlink(path.c_str()) < 0 && errno != ENOENT) return OsError(absl::StrCat("unlink ", path), errno);
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return OsError(absl::StrCat("open ", path), errno);
  LedgerFile file(std::move(fd), path);
  BERTH_RETURN_IF_ERROR(file.Reserve(sizeof(LedgerHeader)));
  file.header() = HeaderOf(identity);
  file.end_ = sizeof(LedgerHeader);
  return file;
}

absl::StatusOr<LedgerFile> LedgerFile::Open(const std::string& path, const LedgerIdentity& identity) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) return OsError(absl::StrCat("open ", path), errno);
  return Open(std::move(fd), path, identity);
}

absl::StatusOr<LedgerFile> LedgerFile::Open(UniqueFd fd, const std::string& path, const LedgerIdentity& identity) {
  struct stat info;
  if (::fstat(fd.get(), &info) < 0) return OsError(absl::StrCat("stat ", path), errno);
  if (!S_ISREG(info.st_mode)) return absl::FailedPreconditionError("not a regular file");
  LedgerFile file(std::move(fd), path);
  const uint64_t size = static_cast<uint64_t>(info.st_size);
  if (size < sizeof(LedgerHeader)) {
    return absl::DataLossError(absl::StrCat("truncated: ", size, " bytes, and the header has ", sizeof(LedgerHeader)));
  }
  BERTH_RETURN_IF_ERROR(file.Map(size));
  BERTH_RETURN_IF_ERROR(file.CheckHeader(identity, size));
  BERTH_RETURN_IF_ERROR(file.CheckFrames(size));
  return file;
}

absl::Status LedgerFile::CheckHeader(const LedgerIdentity& identity, uint64_t size) {
  const LedgerHeader& found = header();
  const LedgerHeader expected = HeaderOf(identity);
  if (found.magic != LedgerHeader::kMagic) return absl::FailedPreconditionError("not a ledger");
  if (found.checksum != ChecksumOf(found)) return absl::DataLossError("the header is damaged");
  const uint32_t earliest = identity.earliest_schema == 0 ? identity.schema : identity.earliest_schema;
  if (found.format != LedgerHeader::kFormat || found.schema < earliest || found.schema > identity.schema) {
    const std::string from =
        earliest == identity.schema ? "" : absl::StrCat(LedgerHeader::kFormat, ".", earliest, " to ");
    return absl::FailedPreconditionError(absl::StrCat("version ", found.format, ".", found.schema,
                                                      ", and this daemon reads ", from, LedgerHeader::kFormat, ".",
                                                      identity.schema));
  }
  if (found.node != expected.node || found.incarnation != expected.incarnation) {
    return absl::FailedPreconditionError("belongs to another node or incarnation");
  }
  if (found.boot != expected.boot) return absl::FailedPreconditionError("belongs to another boot of this machine");
  const uint64_t committed = found.committed;
  end_ = committed & kLengthMask;
  if (committed != Seal(end_) || end_ < sizeof(LedgerHeader))
    return absl::DataLossError("the value with the ledger's length is damaged");
  if (end_ > size) {
    return absl::DataLossError(absl::StrCat("truncated: ", size, " bytes of ", end_));
  }
  return absl::OkStatus();
}

absl::Status LedgerFile::CheckFrames(uint64_t size) {
  BERTH_ASSIGN_OR_RETURN(frames_, CountFrames());
  LedgerFrame frame;
  if (size - end_ >= sizeof(frame)) {
    memcpy(&frame, map_ + end_, sizeof(frame));
    torn_ = frame.number == frames_ + 1;
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> LedgerFile::CountFrames() const {
  uint64_t frames = 0;
  uint64_t at = sizeof(LedgerHeader);
  LedgerFrame frame;
  while (at < end_) {
    const auto damaged = [&] {
      return absl::DataLossError(absl::StrCat("commit ", frames + 1, ", at byte ", at, ", is damaged"));
    };
    if (end_ - at < sizeof(frame)) return damaged();
    memcpy(&frame, map_ + at, sizeof(frame));
    if (frame.number != frames + 1 || frame.size > end_ - at - sizeof(frame)) return damaged();
    if (frame.checksum != ChecksumOf(frame, At(at + sizeof(frame), frame.size))) return damaged();
    ++frames;
    at += sizeof(frame) + frame.size;
  }
  return frames;
}

absl::Status LedgerFile::CheckContent() {
  struct stat info;
  if (::fstat(fd_.get(), &info) < 0) return OsError(absl::StrCat("stat ", path_), errno);
  if (static_cast<uint64_t>(info.st_size) < capacity_) {
    // A use of the mapping past the end of the file would end this process.
    BERTH_RETURN_IF_ERROR(Extend(capacity_));
    return absl::DataLossError(absl::StrCat("truncated: ", info.st_size, " bytes of ", capacity_));
  }
  if (header().magic != LedgerHeader::kMagic || header().checksum != ChecksumOf(header())) {
    return absl::DataLossError("the header is damaged");
  }
  if (header().committed != Seal(end_)) {
    return absl::DataLossError("the value with the ledger's length is damaged");
  }
  return CountFrames().status();
}

absl::StatusOr<LedgerIdentity> LedgerFile::ReadIdentity(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd && errno == ELOOP) return absl::DataLossError(absl::StrCat(path, " is not a ledger"));
  if (!fd) return OsError(absl::StrCat("open ", path), errno);
  LedgerHeader header;
  const ssize_t got = ::pread(fd.get(), &header, sizeof(header), 0);
  if (got < 0 && errno != EISDIR) return OsError(absl::StrCat("read ", path), errno);
  if (got != sizeof(header) || header.magic != LedgerHeader::kMagic || header.checksum != ChecksumOf(header)) {
    return absl::DataLossError(absl::StrCat(path, " is not a ledger, or its header is damaged"));
  }
  return LedgerIdentity{.schema = header.schema,
                        .node = header.node,
                        .incarnation = header.incarnation,
                        .boot = std::string(header.boot.data(), strnlen(header.boot.data(), header.boot.size()))};
}

absl::StatusOr<bool> LedgerFile::IsSuperseded(int fd) {
  uint64_t superseded = 0;
  const ssize_t got = ::pread(fd, &superseded, sizeof(superseded), offsetof(LedgerHeader, superseded));
  if (got < 0) return OsError("pread(ledger)", errno);
  return got == sizeof(superseded) && superseded != 0;
}

void LedgerFile::Supersede() {
  std::atomic_ref<uint64_t>(header().superseded).store(1, std::memory_order_release);
}

bool LedgerFile::IsAt(const std::string& path) const {
  struct stat own;
  struct stat there;
  return ::fstat(fd_.get(), &own) == 0 && ::lstat(path.c_str(), &there) == 0 && own.st_dev == there.st_dev &&
         own.st_ino == there.st_ino;
}

void LedgerFile::ForEach(absl::FunctionRef<void(uint64_t, absl::string_view)> visit) const {
  LedgerFrame frame;
  for (uint64_t at = sizeof(LedgerHeader); at < end_; at += sizeof(frame) + frame.size) {
    memcpy(&frame, map_ + at, sizeof(frame));
    visit(at + sizeof(frame), At(at + sizeof(frame), frame.size));
  }
}

uint64_t LedgerFile::Append(absl::string_view batch) {
  LedgerFrame frame = {.number = ++frames_, .size = static_cast<uint32_t>(batch.size())};
  frame.checksum = ChecksumOf(frame, batch);
  const uint64_t at = end_ + sizeof(frame);
  memcpy(map_ + end_, &frame, sizeof(frame));
  memcpy(map_ + at, batch.data(), batch.size());
  end_ = at + batch.size();
  std::atomic_ref<uint64_t>(header().committed).store(Seal(end_), std::memory_order_release);
  return at;
}

absl::Status LedgerFile::Reserve(uint64_t bytes) {
  if (capacity() >= bytes) return absl::OkStatus();
  const uint64_t wanted = end_ + bytes;
  const uint64_t in_steps = (wanted + kStep - 1) / kStep * kStep;
  return Extend(in_steps).ok() ? absl::OkStatus() : Extend(wanted);
}

absl::Status LedgerFile::Extend(uint64_t size) {
  // Allocate the bytes, so that a store into the mapping cannot fail for lack of space.
  int error = EINTR;
  while (error == EINTR) error = ::posix_fallocate(fd_.get(), 0, static_cast<off_t>(size));
  if (error != 0) return OsError(absl::StrCat("allocate ", size, " bytes of ", path_), error);
  return Map(size);
}

absl::Status LedgerFile::Map(uint64_t size) {
  // MAP_POPULATE, because Open() reads the existing content completely.
  void* const map = map_ == nullptr
                        ? ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_.get(), 0)
                        : ::mremap(map_, capacity_, size, MREMAP_MAYMOVE);
  if (map == MAP_FAILED) return OsError(absl::StrCat("map ", path_), errno);
  map_ = static_cast<char*>(map);
  capacity_ = size;
  return absl::OkStatus();
}

}  // namespace berth
