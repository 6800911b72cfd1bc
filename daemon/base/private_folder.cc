#include "daemon/base/private_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/os/os_error.h"
#include "common/os/unique_fd.h"

namespace berth {

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

}  // namespace berth
