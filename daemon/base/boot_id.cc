#include "daemon/base/boot_id.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/os/os_error.h"
#include "common/os/unique_fd.h"

namespace berth {

absl::StatusOr<std::string> ReadBootId() {
  constexpr char kPath[] = "/proc/sys/kernel/random/boot_id";
  const UniqueFd file(::open(kPath, O_RDONLY | O_CLOEXEC));
  char text[39];
  const ssize_t size = file ? ::read(file.get(), text, sizeof(text)) : -1;
  if (size < 0) return OsError(absl::StrCat("read ", kPath), errno);
  return std::string(absl::StripAsciiWhitespace({text, static_cast<size_t>(size)}));
}

}  // namespace berth
