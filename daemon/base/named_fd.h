// The fd that a path such as /dev/stderr, /dev/fd/9 or /proc/self/fd/9 names.

#ifndef DAEMON_BASE_NAMED_FD_H_
#define DAEMON_BASE_NAMED_FD_H_

#include <optional>
#include <string>

namespace berth {

// Returns the number of this process's fd that `path` names, in any spelling, whether or not the number is open;
// nothing for the path of a file. Follows symbolic links of root and of this process's user.
std::optional<int> FindNamedFd(const std::string& path);

}  // namespace berth

#endif  // DAEMON_BASE_NAMED_FD_H_
