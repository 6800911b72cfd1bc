#include "common/named_memory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/error.h"
#include "common/os_error.h"
#include "common/secret.h"
#include "common/status_macros.h"

namespace berth {
namespace {

// How the 64 bytes are used.
struct Layout {
  static constexpr uint64_t kMagic = 0x6d656d6874726562;  // "berthmem"
  uint64_t magic = kMagic;
  uint32_t device = 0;
  uint32_t padding = 0;
  Secret key;
  std::array<uint8_t, 32> unused = {};
};
static_assert(sizeof(Layout) == sizeof(IpcHandle));

std::string FolderOf(const std::string& folder) { return folder + "/ipc"; }

std::string PrefixOf(uint32_t device) { return absl::StrCat(device, "-"); }

// Errors say nothing of the name: it is what the handle keeps secret.
absl::StatusOr<std::string> PathOf(const std::string& folder, const IpcHandle& handle) {
  Layout layout;
  memcpy(&layout, handle.bytes.data(), sizeof(layout));
  if (layout.magic != Layout::kMagic) {
    return Refuse(Reason::kInvalidField, "{field} is {value}; expected {limit}",
                  {{"field", "ipc_handle"}, {"value", "<IPC handle>"}, {"limit", "one of host memory"}});
  }
  const absl::string_view key(reinterpret_cast<const char*>(&layout.key), sizeof(layout.key));
  return absl::StrCat(FolderOf(folder), "/", PrefixOf(layout.device), absl::BytesToHexString(key));
}

void RemovePrefixed(const std::string& path, absl::string_view prefix) {
  const std::unique_ptr<DIR, int (*)(DIR*)> names(::opendir(path.c_str()), &::closedir);
  if (names == nullptr) return;
  while (const dirent* const name = ::readdir(names.get())) {
    if (absl::StartsWith(name->d_name, prefix)) ::unlinkat(::dirfd(names.get()), name->d_name, 0);
  }
}

absl::Status MakeFolder(const std::string& path) {
  if (::mkdir(path.c_str(), 0711) < 0 && errno != EEXIST) return OsError(absl::StrCat("mkdir ", path), errno);
  // Names in it are found, and not listed, whatever the umask is.
  if (::chmod(path.c_str(), 0711) < 0) return OsError(absl::StrCat("chmod ", path), errno);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<UniqueFd> CreateNamedMemory(const std::string& folder, uint32_t device, Bytes bytes,
                                           IpcHandle* handle) {
  BERTH_RETURN_IF_ERROR(MakeFolder(FolderOf(folder)));
  const Layout layout = {.device = device, .key = RandomSecret()};
  memcpy(handle->bytes.data(), &layout, sizeof(layout));
  BERTH_ASSIGN_OR_RETURN(const std::string path, PathOf(folder, *handle));
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return OsError("open(named memory)", errno);
  // What is not there when it is made would be missing when it is written.
  const int missing = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes.count()));
  absl::Status status = missing == 0 ? absl::OkStatus() : OsError("fallocate(named memory)", missing);
  if (missing == ENOSPC || missing == EFBIG) status = absl::ResourceExhaustedError(status.message());
  if (status.ok() && ::fchmod(fd.get(), 0666) < 0) status = OsError("fchmod(named memory)", errno);
  if (status.ok()) return fd;
  ::unlink(path.c_str());
  return status;
}

absl::StatusOr<UniqueFd> OpenNamedMemory(const std::string& folder, const IpcHandle& handle) {
  BERTH_ASSIGN_OR_RETURN(const std::string path, PathOf(folder, handle));
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) return OsError("open(named memory)", errno);
  return fd;
}

absl::Status RemoveNamedMemory(const std::string& folder, const IpcHandle& handle) {
  BERTH_ASSIGN_OR_RETURN(const std::string path, PathOf(folder, handle));
  if (::unlink(path.c_str()) < 0) return OsError("unlink(named memory)", errno);
  return absl::OkStatus();
}

void RemoveNamedMemory(const std::string& folder, uint32_t device) {
  RemovePrefixed(FolderOf(folder), PrefixOf(device));
}

void RemoveAllNamedMemory(const std::string& folder) {
  RemovePrefixed(FolderOf(folder), "");
  ::rmdir(FolderOf(folder).c_str());
}

}  // namespace berth
