#include "daemon/base/credentials_holders.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/os/memfd.h"
#include "common/os/os_error.h"
#include "common/os/process.h"
#include "common/os/threads.h"
#include "common/status_macros.h"

namespace berth {
namespace {

struct CloseDir {
  void operator()(DIR* dir) const { ::closedir(dir); }
};
using Dir = std::unique_ptr<DIR, CloseDir>;

// Identity of a file in fdinfo: an inode number alone does not identify its file system.
struct FileId {
  uint64_t mount = 0;
  uint64_t inode = 0;
};

// Returns whether the error proves that the process has ended, or that this process may not inspect it. Any other
// error, such as a lack of fds or memory, says nothing about the process.
bool IsAbsence(int error) { return error == ENOENT || error == ESRCH || error == EACCES || error == EPERM; }

// Opens a file or directory of a process. Returns no fd if IsAbsence().
absl::StatusOr<UniqueFd> OpenOf(int directory, const char* name, int flags) {
  UniqueFd fd(::openat(directory, name, flags | O_RDONLY | O_CLOEXEC));
  if (!fd && !IsAbsence(errno)) return OsError(absl::StrCat("open ", name, " of a process in /proc"), errno);
  return fd;
}

// Returns the next entry; null at the end. Errors: those of the system.
absl::StatusOr<const dirent*> NextOf(DIR* directory) {
  errno = 0;
  const dirent* const entry = ::readdir(directory);
  if (entry == nullptr && errno != 0 && !IsAbsence(errno)) return OsError("readdir in /proc", errno);
  return entry;
}

// Reads "mnt_id:" and "ino:" of one fdinfo file. Returns nothing if the file no longer exists or has no inode.
absl::StatusOr<std::optional<FileId>> ReadFileId(int directory, const char* name) {
  BERTH_ASSIGN_OR_RETURN(const UniqueFd fd, OpenOf(directory, name, 0));
  if (!fd) return std::nullopt;
  // Both lines are among the first four.
  char buffer[256];
  const ssize_t got = ::read(fd.get(), buffer, sizeof(buffer));
  if (got < 0 && !IsAbsence(errno)) return OsError("read fdinfo", errno);
  if (got <= 0) return std::nullopt;
  std::optional<uint64_t> mount, inode;
  for (const absl::string_view line : absl::StrSplit(absl::string_view(buffer, static_cast<size_t>(got)), '\n')) {
    const std::pair<absl::string_view, absl::string_view> field = absl::StrSplit(line, absl::MaxSplits(':', 1));
    uint64_t value;
    if (!absl::SimpleAtoi(field.second, &value)) continue;
    if (field.first == "mnt_id") mount = value;
    if (field.first == "ino") inode = value;
  }
  if (!mount.has_value() || !inode.has_value()) return std::nullopt;
  return FileId{.mount = *mount, .inode = *inode};
}

// Returns the mount that contains every memfd of the machine.
absl::StatusOr<uint64_t> MountOfMemfds() {
  BERTH_ASSIGN_OR_RETURN(const UniqueFd memfd, CreateMemfd("berth-mount", 1));
  const UniqueFd directory(::open("/proc/self/fdinfo", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return OsError("/proc/self/fdinfo", errno);
  BERTH_ASSIGN_OR_RETURN(const std::optional<FileId> id,
                         ReadFileId(directory.get(), absl::StrCat(memfd.get()).c_str()));
  if (id.has_value()) return id->mount;
  return absl::UnimplementedError("/proc/self/fdinfo shows no inodes: Berth needs Linux 5.14 or later");
}

// Adds to `found` those of `inodes` that the process or thread whose fds `name` shows has open. Returns whether it has
// any fd.
absl::StatusOr<bool> ReadOpenInodes(int process, const char* name, uint64_t mount,
                                    const absl::flat_hash_set<uint64_t>& inodes, absl::flat_hash_set<uint64_t>* found) {
  BERTH_ASSIGN_OR_RETURN(UniqueFd fd, OpenOf(process, name, O_DIRECTORY));
  if (!fd) return false;
  const Dir dir(::fdopendir(fd.get()));
  if (dir == nullptr) return OsError("fdopendir", errno);
  const int directory = fd.release();
  bool any = false;
  while (true) {
    BERTH_ASSIGN_OR_RETURN(const dirent* const entry, NextOf(dir.get()));
    if (entry == nullptr) return any;
    if (entry->d_name[0] == '.') continue;
    any = true;
    BERTH_ASSIGN_OR_RETURN(const std::optional<FileId> id, ReadFileId(directory, entry->d_name));
    if (id.has_value() && id->mount == mount && inodes.contains(id->inode)) found->insert(id->inode);
  }
}

// Adds to `found` those of `inodes` that the process behind the directory has open.
absl::Status ReadOpenInodes(int process, int32_t pid, uint64_t mount, const absl::flat_hash_set<uint64_t>& inodes,
                            absl::flat_hash_set<uint64_t>* found) {
  BERTH_ASSIGN_OR_RETURN(const bool any, ReadOpenInodes(process, "fdinfo", mount, inodes, found));
  if (any) return absl::OkStatus();
  // A main thread that has ended shows none of the fds that the other threads have open.
  BERTH_ASSIGN_OR_RETURN(const std::vector<int32_t> threads, OtherThreadsOf(pid));
  for (const int32_t thread : threads) {
    const std::string fds = absl::StrCat("task/", thread, "/fdinfo");
    BERTH_RETURN_IF_ERROR(ReadOpenInodes(process, fds.c_str(), mount, inodes, found).status());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::map<uint64_t, std::vector<CredentialsHolder>>> FindCredentialsHolders(
    const absl::flat_hash_set<uint64_t>& inodes) {
  BERTH_ASSIGN_OR_RETURN(const uint64_t mount, MountOfMemfds());
  const Dir proc(::opendir("/proc"));
  if (proc == nullptr) return OsError("/proc", errno);
  std::map<uint64_t, std::vector<CredentialsHolder>> holders;
  while (true) {
    BERTH_ASSIGN_OR_RETURN(const dirent* const entry, NextOf(proc.get()));
    if (entry == nullptr) return holders;
    int32_t pid;
    if (!absl::SimpleAtoi(entry->d_name, &pid) || pid == ::getpid()) continue;
    // The directory still refers to the same process: it reads as empty once the process has ended.
    BERTH_ASSIGN_OR_RETURN(const UniqueFd process, OpenOf(::dirfd(proc.get()), entry->d_name, O_DIRECTORY));
    if (!process) continue;
    absl::flat_hash_set<uint64_t> found;
    BERTH_RETURN_IF_ERROR(ReadOpenInodes(process.get(), pid, mount, inodes, &found));
    for (const uint64_t inode : found) {
      UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
      if (!pidfd && errno == ESRCH) break;
      if (!pidfd) return OsError(absl::StrCat("pidfd_open ", pid), errno);
      // If another process has the pid by now, the directory belongs to a dead process.
      BERTH_ASSIGN_OR_RETURN(const UniqueFd alive, OpenOf(process.get(), "stat", 0));
      char byte;
      if (!alive || ::read(alive.get(), &byte, 1) != 1 || IsGone(pidfd.get())) break;
      holders[inode].push_back({.pid = pid, .pidfd = std::move(pidfd)});
    }
  }
}

absl::StatusOr<uint64_t> InodeOf(int fd) {
  struct stat info;
  if (::fstat(fd, &info) < 0) return OsError("fstat", errno);
  return info.st_ino;
}

}  // namespace berth
