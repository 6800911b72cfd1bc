#include "daemon/base/standard_fds.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/os/nonblocking_write.h"
#include "common/os/os_error.h"
#include "common/status_macros.h"

namespace berth {

__attribute__((no_sanitize("address", "thread"))) void OpenStandardFds() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    // open() returns the lowest free number, which is `fd`: all lower numbers are open.
    if (::open("/dev/null", O_RDWR) >= 0) continue;
    constexpr char kWhy[] = "berthd: cannot open /dev/null in place of a closed stdin, stdout or stderr; create it\n";
    WriteWithoutBlocking(STDERR_FILENO, kWhy, sizeof(kWhy) - 1);
    ::_exit(1);
  }
}

absl::StatusOr<UniqueFd> TakeOverFd(int fd) {
  if (fd > STDERR_FILENO) {
    if (::fcntl(fd, F_SETFD, FD_CLOEXEC) < 0) return OsError(absl::StrCat("fcntl ", fd), errno);
    return UniqueFd(fd);
  }
  BERTH_ASSIGN_OR_RETURN(UniqueFd taken, DuplicateFd(fd));
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null) return OsError("open /dev/null", errno);
  if (::dup2(null.get(), fd) < 0) return OsError(absl::StrCat("dup2 ", fd), errno);
  return taken;
}

}  // namespace berth
