#include "common/os/unique_fd.h"

#include <errno.h>
#include <fcntl.h>

#include "common/os/os_error.h"

namespace berth {

absl::StatusOr<UniqueFd> DuplicateFd(int fd) {
  const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (copy < 0) return OsError("fcntl(F_DUPFD_CLOEXEC)", errno);
  return UniqueFd(copy);
}

}  // namespace berth
