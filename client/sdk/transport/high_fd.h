// Fd numbers that do not collide with those of scripts.

#ifndef CLIENT_SDK_TRANSPORT_HIGH_FD_H_
#define CLIENT_SDK_TRANSPORT_HIGH_FD_H_

#include "common/os/unique_fd.h"

namespace berth::internal {

// Returns the least number that MoveFarUp() uses: 64 below RLIMIT_NOFILE or 1,024, whichever is less; half of a limit
// below 128. Scripts use 3 to 9, shells 10 to 255. A number past 1,024 would give each process a larger fd table.
int LeastHighFd();

// Moves the open file to a close-on-exec fd numbered LeastHighFd() or higher. Returns `fd` itself where no such number
// is free.
UniqueFd MoveFarUp(UniqueFd fd);

}  // namespace berth::internal

#endif  // CLIENT_SDK_TRANSPORT_HIGH_FD_H_
