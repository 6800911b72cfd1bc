// Finds the processes that have a session's credentials file open (common/wire/session_credentials.h). Descendants
// inherit the file together with the lifeline, so its holders are the lifeline's holders, even after all sockets are
// lost.
//
// The search reads /proc/PID/fdinfo, which requires permission to trace a process (CAP_SYS_PTRACE for other users'
// processes) but no permission to open its files. Linux shows inodes there from 5.14 on.

#ifndef DAEMON_BASE_CREDENTIALS_HOLDERS_H_
#define DAEMON_BASE_CREDENTIALS_HOLDERS_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "common/os/unique_fd.h"

namespace berth {

struct CredentialsHolder {
  int32_t pid = 0;
  UniqueFd pidfd;
};

// Returns the living processes that have a credentials file of one of `inodes` open, by inode. Excludes this process.
// Reads all of /proc: about 1 ms for 50 processes. Thread-safe.
// Does not find processes of another PID namespace's /proc, processes that this process may not trace, or a file in
// flight through a socket.
// Errors: kUnimplemented if the kernel does not show inodes; those of reading /proc.
absl::StatusOr<std::map<uint64_t, std::vector<CredentialsHolder>>> FindCredentialsHolders(
    const absl::flat_hash_set<uint64_t>& inodes);

// Returns the inode of the file behind `fd`. Errors: those of fstat.
absl::StatusOr<uint64_t> InodeOf(int fd);

}  // namespace berth

#endif  // DAEMON_BASE_CREDENTIALS_HOLDERS_H_
