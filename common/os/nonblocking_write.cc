#include "common/os/nonblocking_write.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "common/os/unique_fd.h"

namespace berth {
namespace {

// Calls `write` with the signals of a failed write blocked in this thread, and discards the one that it raised.
template <typename Write>
ssize_t WithoutSignal(Write write) {
  sigset_t raised, before;
  ::sigemptyset(&raised);
  for (const int signal : {SIGPIPE, SIGXFSZ, SIGTTOU}) ::sigaddset(&raised, signal);
  ::pthread_sigmask(SIG_BLOCK, &raised, &before);
  const ssize_t written = write();
  const int error = errno;
  const int own = written >= 0 ? 0 : error == EPIPE ? SIGPIPE : error == EFBIG ? SIGXFSZ : 0;
  if (own != 0) {
    ::sigemptyset(&raised);
    ::sigaddset(&raised, own);
    const timespec now = {};
    // The kernel sends it to this thread. The thread's own signals come before those of the process.
    while (::sigtimedwait(&raised, nullptr, &now) < 0 && errno == EINTR) {
    }
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return written;
}

// Whether write(2) accepts the fd. The read end of a pipe, opened again for writing, would accept text that the pipe's
// reader then gets.
bool IsForWriting(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0) return false;
  const int mode = flags & O_ACCMODE;
  if (mode == O_WRONLY || mode == O_RDWR) return true;
  errno = EBADF;
  return false;
}

bool IsTerminal(int fd, const struct stat& file) { return S_ISCHR(file.st_mode) && ::isatty(fd) != 0; }

// Opens the pipe or terminal at `fd` again. The permissions of another user's can prevent that.
UniqueFd Reopen(int fd, const struct stat& file) {
  constexpr int kFlags = O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  // The other side of a terminal cannot be opened again: that would make a new terminal.
  if (S_ISCHR(file.st_mode) && file.st_rdev == makedev(5, 2)) return UniqueFd();
  char path[32];
  ::snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
  UniqueFd own(::open(path, kFlags));
  // Each process may open its own terminal under this name.
  const bool controlling = !own && S_ISCHR(file.st_mode) && ::tcgetsid(fd) == ::getsid(0);
  if (controlling) own.reset(::open("/dev/tty", kFlags));
  return own;
}

ssize_t WriteToStream(int fd, const struct stat& file, const void* data, size_t size) {
  if (const UniqueFd own = Reopen(fd, file)) return ::write(own.get(), data, size);
  const iovec all = {.iov_base = const_cast<void*>(data), .iov_len = size};
  const ssize_t written = ::pwritev2(fd, &all, 1, -1, RWF_NOWAIT);
  if (written >= 0 || errno != EOPNOTSUPP) return written;
  // Another user's terminal, or another user's pipe before Linux 6.4. A pipe that is ready takes PIPE_BUF bytes, and a
  // terminal one. Another process that writes at the same moment may take them first.
  pollfd ready = {.fd = fd, .events = POLLOUT, .revents = 0};
  if (::poll(&ready, 1, 0) > 0) return ::write(fd, data, S_ISFIFO(file.st_mode) ? size : 1);
  errno = EAGAIN;
  return -1;
}

}  // namespace

ssize_t WriteWithoutSignal(int fd, const void* data, size_t size) {
  return WithoutSignal([=] { return ::write(fd, data, size); });
}

ssize_t PwriteWithoutSignal(int fd, const void* data, size_t size, off_t offset) {
  return WithoutSignal([=] { return ::pwrite(fd, data, size, offset); });
}

ssize_t WriteWithoutBlocking(int fd, const void* data, size_t size) {
  struct stat file;
  if (!IsForWriting(fd) || ::fstat(fd, &file) < 0) return -1;
  if (S_ISSOCK(file.st_mode)) return ::send(fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
  if ((file.st_mode & S_IFMT) == 0) {
    errno = EINVAL;
    return -1;
  }
  if (!S_ISFIFO(file.st_mode) && !IsTerminal(fd, file)) return WriteWithoutSignal(fd, data, size);
  return WithoutSignal([&] { return WriteToStream(fd, file, data, std::min<size_t>(size, PIPE_BUF)); });
}

void MakeOwnNonBlocking(int fd) {
  struct stat file;
  if (!IsForWriting(fd) || ::fstat(fd, &file) < 0 || (!S_ISFIFO(file.st_mode) && !IsTerminal(fd, file))) return;
  if (const UniqueFd own = Reopen(fd, file)) ::dup2(own.get(), fd);
}

}  // namespace berth
