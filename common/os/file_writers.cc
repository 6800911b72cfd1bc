#include "common/os/file_writers.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <sys/vfs.h>

namespace berth {
namespace {

// Whether processes of other machines may write the file, which leases of this kernel do not cover.
bool IsShared(int file) {
  struct statfs system;
  if (::fstatfs(file, &system) < 0) return true;
  // Fields of 32 bits may be signed.
  switch (static_cast<unsigned int>(system.f_type)) {
    case NFS_SUPER_MAGIC:
    case SMB_SUPER_MAGIC:
    case CIFS_SUPER_MAGIC:
    case SMB2_SUPER_MAGIC:
    case AFS_SUPER_MAGIC:
    case CEPH_SUPER_MAGIC:
    case FUSE_SUPER_MAGIC:
    case V9FS_MAGIC:
      return true;
    default:
      return false;
  }
}

}  // namespace

FileWriters FindWriters(int file) {
  if (IsShared(file)) return FileWriters::kUnknown;
  // The kernel signals the lease's holder when a writer opens the file. The default signal, SIGIO, ends the process;
  // SIGURG has no effect.
  if (::fcntl(file, F_SETSIG, SIGURG) < 0) return FileWriters::kUnknown;
  if (::fcntl(file, F_SETLEASE, F_RDLCK) < 0) return errno == EAGAIN ? FileWriters::kSome : FileWriters::kUnknown;
  ::fcntl(file, F_SETLEASE, F_UNLCK);
  return FileWriters::kNone;
}

}  // namespace berth
