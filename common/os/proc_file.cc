#include "common/os/proc_file.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/os/os_error.h"
#include "common/os/unique_fd.h"

namespace berth {

absl::StatusOr<std::string> ReadProcFile(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char buffer[8192];
  const ssize_t got = fd ? ::read(fd.get(), buffer, sizeof(buffer)) : -1;
  if (got >= 0) return std::string(buffer, static_cast<size_t>(got));
  const absl::Status failed = OsError(absl::StrCat(fd ? "read " : "open ", path), errno);
  if (absl::IsResourceExhausted(failed)) return failed;
  return "";
}

}  // namespace berth
