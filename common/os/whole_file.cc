#include "common/os/whole_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/os/file_io.h"
#include "common/os/os_error.h"
#include "common/secret.h"
#include "common/status_macros.h"

namespace berth {
namespace {

absl::Status CheckPlace(const std::string& path) {
  struct stat info;
  if (::lstat(path.c_str(), &info) < 0) return errno == ENOENT ? absl::OkStatus() : OsError(path, errno);
  if (S_ISREG(info.st_mode)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      path, S_ISLNK(info.st_mode) ? " is a symbolic link: name the file itself" : " is not a regular file"));
}

}  // namespace

absl::StatusOr<WholeFile> WholeFile::Create(const std::string& path, mode_t mode) {
  BERTH_RETURN_IF_ERROR(CheckPlace(path));
  std::string beside = absl::StrCat(path, ".", RandomId());
  UniqueFd fd(::open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
  if (!fd) return OsError(path, errno);
  return WholeFile(path, std::move(beside), std::move(fd));
}

WholeFile::WholeFile(std::string path, std::string beside, UniqueFd fd)
    : path_(std::move(path)), beside_(std::move(beside)), fd_(std::move(fd)) {}

WholeFile::WholeFile(WholeFile&& other) noexcept
    : path_(std::move(other.path_)), beside_(std::exchange(other.beside_, {})), fd_(std::move(other.fd_)) {}

WholeFile::~WholeFile() {
  if (!beside_.empty()) ::unlink(beside_.c_str());
}

absl::Status WholeFile::Commit() {
  // A rename replaces a link and never follows it, so a link planted meanwhile has no effect.
  if (::rename(beside_.c_str(), path_.c_str()) < 0) return OsError(path_, errno);
  beside_.clear();
  return absl::OkStatus();
}

absl::Status WriteWholeFile(const std::string& path, absl::string_view bytes, mode_t mode) {
  BERTH_ASSIGN_OR_RETURN(WholeFile file, WholeFile::Create(path, mode));
  BERTH_RETURN_IF_ERROR(WriteAll(file.fd(), bytes, path));
  return file.Commit();
}

}  // namespace berth
