#include "daemon/base/private_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/os/os_error.h"
#include "common/os/process.h"
#include "common/os/unique_fd.h"
#include "common/status_macros.h"

namespace berth {
namespace {

// Checks `above`, a folder on the way to `path`.
absl::Status CheckOnTheWay(const std::string& above, const std::string& path) {
  struct stat info;
  if (::stat(above.c_str(), &info) < 0) return absl::OkStatus();
  if (info.st_uid != 0 && info.st_uid != ::geteuid() && info.st_uid != kOverflowUid) {
    return absl::FailedPreconditionError(
        absl::StrCat("folder ", path, " is below ", above, ", which belongs to uid ", info.st_uid,
                     ", so that user can replace it; choose a folder below folders of root or the daemon's user"));
  }
  const bool by_group = (info.st_mode & S_IWGRP) != 0 && info.st_gid != 0 && info.st_gid != ::getegid();
  if ((info.st_mode & S_ISVTX) != 0 || (!by_group && (info.st_mode & S_IWOTH) == 0)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("folder %s is below %s, which has mode %04o, so other users can replace it; choose a folder "
                      "elsewhere, or run chmod go-w or chmod +t on %s",
                      path, above, info.st_mode & 07777, above));
}

}  // namespace

absl::Status CheckPrivate(int fd, const std::string& path) {
  struct stat info;
  if (::fstat(fd, &info) < 0) return OsError(absl::StrCat("stat ", path), errno);
  if (info.st_uid != ::geteuid()) {
    return absl::FailedPreconditionError(absl::StrCat("folder ", path, " belongs to uid ", info.st_uid,
                                                      "; expected a folder of uid ", ::geteuid()));
  }
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return absl::FailedPreconditionError(
        absl::StrFormat("folder %s has mode %04o, so other users can write to it; choose a folder that only uid %d can "
                        "write to, or run chmod go-w on it",
                        path, info.st_mode & 07777, ::geteuid()));
  }
  return absl::OkStatus();
}

absl::Status CheckPrivate(const std::string& path) {
  const UniqueFd folder(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (folder) return CheckPrivate(folder.get(), path);
  if (errno == ENOENT) return absl::OkStatus();
  if (errno == ENOTDIR) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is no folder, or is below a file; name a folder, which "
                                                      "the daemon creates where there is none"));
  }
  return OsError(absl::StrCat("open ", path), errno);
}

absl::Status CheckAbove(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  std::error_code ignored;
  // Behind a link, the folders above its target count as well.
  for (const std::filesystem::path& start : {parent, std::filesystem::weakly_canonical(parent, ignored)}) {
    for (std::filesystem::path above = start; !above.empty(); above = above.parent_path()) {
      BERTH_RETURN_IF_ERROR(CheckOnTheWay(above.string(), path));
      if (!above.has_relative_path()) break;
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOwner(const std::string& path) {
  struct stat info;
  if (::lstat(path.c_str(), &info) < 0) {
    return errno == ENOENT ? absl::OkStatus() : OsError(absl::StrCat("stat ", path), errno);
  }
  if (info.st_uid == 0 || info.st_uid == ::geteuid()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(path, " belongs to uid ", info.st_uid, ", who can change it; "
                                                    "expected a file of uid ", ::geteuid(), ": remove it"));
}

}  // namespace berth
