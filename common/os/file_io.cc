#include "common/os/file_io.h"

#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/os/os_error.h"

namespace berth {

absl::StatusOr<std::string> ReadToEnd(int fd, absl::string_view name) {
  std::string text;
  char part[4096];
  while (true) {
    const ssize_t size = ::read(fd, part, sizeof(part));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return OsError(absl::StrCat("read ", name), errno);
    if (size == 0) return text;
    text.append(part, static_cast<size_t>(size));
  }
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

}  // namespace berth
