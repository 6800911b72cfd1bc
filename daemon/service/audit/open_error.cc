#include "daemon/service/audit/open_error.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/os/os_error.h"

namespace berth::service {

absl::Status OpenError(absl::string_view name, const std::string& path, int error) {
  const absl::Status status = OsError(name, error);
  if (error != EACCES && error != EPERM) return status;
  struct stat file;
  std::string why;
  if (::stat(path.c_str(), &file) == 0) {
    why = absl::StrFormat("the file is user %d's with mode %04o; let user %d write it", file.st_uid,
                          file.st_mode & 07777, ::geteuid());
  } else {
    const std::string folder = std::filesystem::path(path).parent_path();
    why = absl::StrCat("let user ", ::geteuid(), " make files in ", folder.empty() ? "." : folder);
  }
  return absl::Status(status.code(), absl::StrCat(status.message(), ": ", why));
}

}  // namespace berth::service
