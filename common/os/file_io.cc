#include "common/os/file_io.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/os/os_error.h"
#include "common/os/proc_file.h"
#include "common/os/unique_fd.h"
#include "common/os/whole_file.h"
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

absl::StatusOr<std::string> ReadToEnd(int fd, absl::string_view name, size_t enough) {
  std::string text;
  char part[4096];
  while (text.size() < enough) {
    const ssize_t size = ::read(fd, part, sizeof(part));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return OsError(absl::StrCat("read ", name), errno);
    if (size == 0) return text;
    text.append(part, static_cast<size_t>(size));
  }
  return text;
}

absl::Status WriteAll(int fd, absl::string_view bytes, absl::string_view name) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return OsError(absl::StrCat("write ", name), errno);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

// ---- proc_file.h ---------------------------------------------------------------------------------------------

absl::StatusOr<std::string> ReadProcFile(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char buffer[8192];
  const ssize_t got = fd ? ::read(fd.get(), buffer, sizeof(buffer)) : -1;
  if (got >= 0) return std::string(buffer, static_cast<size_t>(got));
  const absl::Status failed = OsError(absl::StrCat(fd ? "read " : "open ", path), errno);
  if (absl::IsResourceExhausted(failed)) return failed;
  return "";
}

// ---- whole_file.h --------------------------------------------------------------------------------------------

namespace {

// Returns a new name in the folder of `path`: the file's name and a random number. Shortens a name that would be too
// long with the number, between two characters of UTF-8.
std::string NewNameBeside(const std::string& path) {
  const std::string suffix = absl::StrCat(".", RandomId());
  size_t end = std::min(path.size(), path.rfind('/') + 1 + NAME_MAX - suffix.size());
  for (int rest = 0; rest < 3 && end < path.size() && (path[end] & 0xc0) == 0x80; ++rest) --end;
  return path.substr(0, end) + suffix;
}

}  // namespace

absl::StatusOr<WholeFile> WholeFile::Create(const std::string& path, mode_t mode) {
  BERTH_RETURN_IF_ERROR(CheckPlace(path));
  std::string beside = NewNameBeside(path);
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
