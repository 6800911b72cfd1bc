#include "daemon/broker/module_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/os/file_io.h"
#include "common/os/memfd.h"
#include "common/os/os_error.h"
#include "common/sha256.h"
#include "common/status_macros.h"
#include "daemon/base/private_folder.h"
#include "daemon/broker/node_clock.h"

namespace berth {
namespace {

constexpr char kMagic[8] = {'B', 'E', 'R', 'T', 'H', 'M', 'O', 'D'};
constexpr uint32_t kVersion = 1;
// Name of a file in errors.
constexpr absl::string_view kModule = "module";
constexpr absl::string_view kSuffix = ".module";
constexpr absl::string_view kUnfinished = ".unfinished";

struct Head {
  char magic[8] = {};
  uint32_t version = 0;
  // Length of the record that follows, in bytes.
  uint32_t length = 0;
  Digest digest;
};

// Serialises a record's fields one after the other, each text with its length.
class Writer {
 public:
  Writer& Add(absl::string_view text) {
    Add(uint64_t{text.size()});
    bytes_.append(text.data(), text.size());
    return *this;
  }
  Writer& Add(uint64_t number) {
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof(number));
    return *this;
  }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(absl::string_view bytes) : rest_(bytes) {}
  uint64_t Number() {
    uint64_t number = 0;
    if (rest_.size() < sizeof(number)) {
      good_ = false;
      return 0;
    }
    memcpy(&number, rest_.data(), sizeof(number));
    rest_.remove_prefix(sizeof(number));
    return number;
  }
  std::string Text() {
    const uint64_t size = Number();
    if (size > rest_.size()) {
      good_ = false;
      return "";
    }
    const std::string text(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return text;
  }
  Digest TakeDigest() {
    Digest digest;
    const std::string text = Text();
    good_ = good_ && text.size() == Digest::kBytes;
    if (good_) memcpy(digest.bits.data(), text.data(), Digest::kBytes);
    return digest;
  }
  // Returns whether all fields were present and no bytes are left.
  bool whole() const { return good_ && rest_.empty(); }

 private:
  absl::string_view rest_;
  bool good_ = true;
};

std::string Encode(const core::ModuleRecord& record) {
  return Writer()
      .Add(uint64_t{record.tenant.uid})
      .Add(record.tenant.container)
      .Add(record.key.bytes())
      .Add(record.architecture)
      .Add(record.compiler)
      .Add(record.label)
      .Add(record.bytes.count())
      .Add(record.content.bytes())
      // Files outlive the boot and its clock, hence wall time.
      .Add(static_cast<uint64_t>(absl::ToUnixNanos(NodeClock::Real().ToWall(record.create_time))))
      .Take();
}

std::optional<core::ModuleRecord> Decode(absl::string_view bytes) {
  Reader reader(bytes);
  core::ModuleRecord record;
  record.tenant.uid = static_cast<uint32_t>(reader.Number());
  record.tenant.container = reader.Text();
  record.key = reader.TakeDigest();
  record.architecture = reader.Text();
  record.compiler = reader.Text();
  record.label = reader.Text();
  record.bytes = Bytes(reader.Number());
  record.content = reader.TakeDigest();
  record.create_time = NodeClock::Real().FromWall(absl::FromUnixNanos(static_cast<int64_t>(reader.Number())));
  if (!reader.whole()) return std::nullopt;
  return record;
}

// Returns the file name of a tenant's key: unique, and without revealing tenant or key.
std::string NameOf(const core::ModuleRecord& record) {
  Sha256OfFields fields;
  fields.Add(uint64_t{record.tenant.uid}).Add(record.tenant.container).Add(record.key.bytes());
  return absl::StrCat(ToHex(fields.Finish()), kSuffix);
}

// Opens a folder of this user's; creates it, private to this user, if it is missing.
// Errors: kFailedPrecondition if it is no folder, is another user's, or is writable by others.
absl::StatusOr<UniqueFd> OpenFolder(int at, const std::string& name, const std::string& path) {
  if (::mkdirat(at, name.c_str(), 0700) < 0 && errno != EEXIST) {
    return OsError(absl::StrCat("mkdir ", path), errno);
  }
  UniqueFd folder(::openat(at, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder && (errno == ENOTDIR || errno == ELOOP)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a folder"));
  }
  if (!folder) return OsError(absl::StrCat("open ", path), errno);
  BERTH_RETURN_IF_ERROR(CheckPrivate(folder.get(), path));
  return folder;
}

// Reads exactly `size` bytes. Errors: kDataLoss if there are fewer.
absl::Status ReadAt(int fd, void* to, size_t size, uint64_t offset) {
  char* const bytes = static_cast<char*>(to);
  for (size_t done = 0; done < size;) {
    const ssize_t got = ::pread(fd, bytes + done, size - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return OsError("pread(module)", errno);
    if (got == 0) return absl::DataLossError("the file ends too early");
    done += static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

struct ReadRecord {
  core::ModuleRecord record;
  // Offset of the module in the file, in bytes.
  uint64_t offset = 0;
};

// Errors: kDataLoss if the file is no valid module file.
absl::StatusOr<ReadRecord> ReadRecordOf(int fd) {
  // Longer than any container's name and labels.
  constexpr uint32_t kLongest = 16 << 10;
  Head head;
  BERTH_RETURN_IF_ERROR(ReadAt(fd, &head, sizeof(head), 0));
  if (memcmp(head.magic, kMagic, sizeof(kMagic)) != 0 || head.version != kVersion || head.length > kLongest) {
    return absl::DataLossError("the file is not a module file");
  }
  std::string bytes(head.length, '\0');
  BERTH_RETURN_IF_ERROR(ReadAt(fd, bytes.data(), bytes.size(), sizeof(head)));
  std::optional<core::ModuleRecord> record = Decode(bytes);
  if (Sha256Of(bytes) != head.digest || !record.has_value()) {
    return absl::DataLossError("the file's record is damaged");
  }
  return ReadRecord{.record = *std::move(record), .offset = sizeof(head) + bytes.size()};
}

}  // namespace

absl::StatusOr<SealedModule> SealModule(int from, uint64_t offset, Bytes bytes) {
  constexpr uint64_t kPiece = 256 << 10;
  BERTH_ASSIGN_OR_RETURN(const UniqueFd memory, CreateMemfd("berth-module", 0));
  // Written instead of mapped: if memory runs out, a write fails, but an access to a mapping ends the process.
  std::string piece;
  for (uint64_t done = 0; done < bytes.count(); done += piece.size()) {
    piece.resize(std::min(kPiece, bytes.count() - done));
    BERTH_RETURN_IF_ERROR(ReadAt(from, piece.data(), piece.size(), offset + done));
    BERTH_RETURN_IF_ERROR(WriteAll(memory.get(), piece, kModule));
  }
  BERTH_RETURN_IF_ERROR(SealMemfd(memory.get(), F_SEAL_WRITE));
  SealedModule sealed;
  BERTH_ASSIGN_OR_RETURN(sealed.fd, ReopenReadOnly(memory.get()));
  // Digest of the sealed copy, which no process can change, even if the source is still writable.
  void* const still = ::mmap(nullptr, bytes.count(), PROT_READ, MAP_SHARED, sealed.fd.get(), 0);
  if (still == MAP_FAILED) return OsError("mmap(module)", errno);
  sealed.content = Sha256Of({static_cast<const char*>(still), bytes.count()});
  ::munmap(still, bytes.count());
  return sealed;
}

absl::StatusOr<std::unique_ptr<ModuleFiles>> ModuleFiles::Open(const std::string& parent) {
  BERTH_ASSIGN_OR_RETURN(const UniqueFd above, OpenFolder(AT_FDCWD, parent, parent));
  const std::string path = parent + "/modules";
  BERTH_ASSIGN_OR_RETURN(UniqueFd folder, OpenFolder(above.get(), "modules", path));
  // Private to the daemon, unlike its parent.
  if (::fchmod(folder.get(), 0700) < 0) return OsError(absl::StrCat("chmod ", path), errno);
  UniqueFd lock(::openat(folder.get(), "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) return OsError(absl::StrCat("open ", path, "/lock"), errno);
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) < 0) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is in use by another daemon"));
  }
  return std::unique_ptr<ModuleFiles>(new ModuleFiles(std::move(folder), std::move(lock)));
}

ModuleFiles::Contents ModuleFiles::Scan() {
  Contents contents;
  DIR* const entries = ::fdopendir(::openat(folder_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (entries == nullptr) return contents;
  const absl::Cleanup close = [&] { ::closedir(entries); };
  std::vector<std::pair<int64_t, core::ModuleRecord>> found;
  while (const dirent* const entry = ::readdir(entries)) {
    const absl::string_view name = entry->d_name;
    if (absl::EndsWith(name, kUnfinished)) ::unlinkat(folder_.get(), entry->d_name, 0);
    if (!absl::EndsWith(name, kSuffix)) continue;
    const UniqueFd file(::openat(folder_.get(), entry->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    // A shortage of fds: the next start finds the file.
    if (!file && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) continue;
    struct stat info = {};
    absl::StatusOr<ReadRecord> read = absl::DataLossError("the file cannot be opened");
    if (file && ::fstat(file.get(), &info) == 0 && S_ISREG(info.st_mode)) read = ReadRecordOf(file.get());
    const bool whole = read.ok() && NameOf(read->record) == name && read->record.bytes.count() > 0 &&
                       static_cast<uint64_t>(info.st_size) == read->offset + read->record.bytes.count();
    if (!whole) {
      ++contents.corrupt;
      ::unlinkat(folder_.get(), entry->d_name, 0);
      continue;
    }
    const int64_t used = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
    found.push_back({used, std::move(read->record)});
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [used, record] : found) contents.records.push_back(std::move(record));
  return contents;
}

absl::StatusOr<UniqueFd> ModuleFiles::Load(const core::ModuleRecord& record) {
  const UniqueFd file(
      ::openat(folder_.get(), NameOf(record).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file && errno == ENOENT) return absl::DataLossError("the file is gone");
  if (!file) return OsError("open(module)", errno);
  BERTH_ASSIGN_OR_RETURN(ReadRecord read, ReadRecordOf(file.get()));
  // The wall clock may have been set since.
  read.record.create_time = record.create_time;
  if (Encode(read.record) != Encode(record)) return absl::DataLossError("the file is of another module");
  BERTH_ASSIGN_OR_RETURN(SealedModule sealed, SealModule(file.get(), read.offset, record.bytes));
  if (sealed.content != record.content) return absl::DataLossError("the file's content is damaged");
  // The file's modification time is the module's last use, which matters after a restart.
  ::futimens(file.get(), nullptr);
  return std::move(sealed.fd);
}

absl::Status ModuleFiles::Store(const core::ModuleRecord& record, int memory) {
  const std::string name = NameOf(record);
  const std::string unfinished = absl::StrCat(name, kUnfinished);
  ::unlinkat(folder_.get(), unfinished.c_str(), 0);
  const UniqueFd file(::openat(folder_.get(), unfinished.c_str(),
                               O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return OsError("create(module)", errno);
  absl::Cleanup remove = [&] { ::unlinkat(folder_.get(), unfinished.c_str(), 0); };
  const std::string bytes = Encode(record);
  Head head{.version = kVersion, .length = static_cast<uint32_t>(bytes.size()), .digest = Sha256Of(bytes)};
  memcpy(head.magic, kMagic, sizeof(kMagic));
  BERTH_RETURN_IF_ERROR(WriteAll(file.get(), {reinterpret_cast<const char*>(&head), sizeof(head)}, kModule));
  BERTH_RETURN_IF_ERROR(WriteAll(file.get(), bytes, kModule));
  void* const at = ::mmap(nullptr, record.bytes.count(), PROT_READ, MAP_SHARED, memory, 0);
  if (at == MAP_FAILED) return OsError("mmap(module)", errno);
  const absl::Status written = WriteAll(file.get(), {static_cast<const char*>(at), record.bytes.count()}, kModule);
  ::munmap(at, record.bytes.count());
  BERTH_RETURN_IF_ERROR(written);
  if (::renameat(folder_.get(), unfinished.c_str(), folder_.get(), name.c_str()) < 0) {
    return OsError("rename(module)", errno);
  }
  std::move(remove).Cancel();
  return absl::OkStatus();
}

void ModuleFiles::Drop(const core::ModuleRecord& record) {
  ::unlinkat(folder_.get(), NameOf(record).c_str(), 0);
}

}  // namespace berth
