#include "common/os/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/os/os_error.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace berth {

absl::StatusOr<UniqueFd> CreateMemfd(const char* name, size_t size) {
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  UniqueFd fd(::memfd_create(name, flags | MFD_NOEXEC_SEAL));
  // Kernels before 6.3 do not know the flag.
  if (!fd && errno == EINVAL) fd.reset(::memfd_create(name, flags));
  if (!fd) return OsError("memfd_create", errno);
  if (::fchmod(fd.get(), 0400) < 0) return OsError("fchmod(memfd)", errno);
  if (size > 0 && ::ftruncate(fd.get(), static_cast<off_t>(size)) < 0)
    return OsError("ftruncate(memfd)", errno);
  return fd;
}

absl::Status SealMemfd(int fd, int more) {
  if (::fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL | more) < 0) {
    return OsError("fcntl(F_ADD_SEALS)", errno);
  }
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> ReopenReadOnly(int fd) {
  UniqueFd copy(::open(absl::StrCat("/proc/self/fd/", fd).c_str(), O_RDONLY | O_CLOEXEC));
  if (!copy) return OsError("open(/proc/self/fd)", errno);
  return copy;
}

}  // namespace berth
