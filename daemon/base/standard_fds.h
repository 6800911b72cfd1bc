// Protects fds 0, 1 and 2 of a process that owns files and sockets: libraries write to whatever is open there.

#ifndef DAEMON_BASE_STANDARD_FDS_H_
#define DAEMON_BASE_STANDARD_FDS_H_

#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"

namespace berth {

// Opens /dev/null as each of stdin, stdout and stderr that is closed, so that no file or socket gets its number. Ends
// the process if /dev/null cannot be opened, with an error on an open stderr. Makes system calls only, and may run
// before the libraries' initialisers, some of which open files.
void OpenStandardFds();

// Takes ownership of `fd`, close-on-exec. If it is one of the three, moves it and opens /dev/null in its place.
// Errors: those of fcntl() and of opening /dev/null.
absl::StatusOr<UniqueFd> TakeOverFd(int fd);

}  // namespace berth

#endif  // DAEMON_BASE_STANDARD_FDS_H_
