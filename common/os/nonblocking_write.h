// Writes to an fd that other processes share, such as stderr. These functions leave the flags of the shared file
// description and the signal dispositions of the process as they are. They allocate no memory.

#ifndef COMMON_OS_NONBLOCKING_WRITE_H_
#define COMMON_OS_NONBLOCKING_WRITE_H_

#include <stddef.h>
#include <sys/types.h>

namespace berth {

// Writes as write(2) does, without a signal to this process. Prevents SIGPIPE (no reader), SIGXFSZ (a file at its size
// limit) and SIGTTOU (a background process on a terminal).
ssize_t WriteWithoutSignal(int fd, const void* data, size_t size);
// Writes as pwrite(2) does, likewise without a signal.
ssize_t PwriteWithoutSignal(int fd, const void* data, size_t size, off_t offset);

// As WriteWithoutSignal(), and never waits for the reader: writes the part for which a pipe, a terminal or a socket has
// capacity. Returns -1 with EAGAIN if it has none. Files and block devices are written as by write(2). Refuses an fd
// that is not open for writing with EBADF, and one that is no file, such as an eventfd, with EINVAL.
ssize_t WriteWithoutBlocking(int fd, const void* data, size_t size);

// Opens the pipe or terminal at `fd` again, non-blocking, under the same fd number. No later write of this process or
// its children then blocks there, whatever code writes. Leaves any other fd as it is, also one that is not open for
// writing or cannot be opened again.
void MakeOwnNonBlocking(int fd);

}  // namespace berth

#endif  // COMMON_OS_NONBLOCKING_WRITE_H_
