// Reads facts about processes from /proc.

#ifndef TESTS_SUPPORT_PROC_H_
#define TESTS_SUPPORT_PROC_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace berth::testing {

struct ChildInfo {
  pid_t pid = 0;
  // Short name, at most 15 bytes.
  std::string name;
};

// Returns the living children of `pid`, by pid, without zombies.
std::vector<ChildInfo> ChildrenOf(pid_t pid);

// Returns the living processes whose first word is exactly `program` and whose arguments include `argument`, by pid.
std::vector<ChildInfo> ProcessesWith(const std::string& program, const std::string& argument);

// Counts open file descriptors, without eventfd and epoll fds, of which gRPC opens more under load, and without the
// GPU's, whose number the driver varies. Returns 0 for a process that has ended. ResidentBytes() returns bytes resident
// in memory.
size_t CountFds(pid_t pid);
uint64_t ResidentBytes(pid_t pid);

// Describes the open file descriptors, for messages.
std::string DescribeFds(pid_t pid);

// Counts stream connections to the Unix socket at `path` that its owner has not closed, accepted or not.
size_t CountConnections(const std::string& path);

// Whether `pid` is a process and no zombie.
bool IsAlive(pid_t pid);

// Returns the process's state letter in /proc: 'R', 'S', 'T', …; 0 for a process that has ended.
char StateOf(pid_t pid);

// Whether a signal for the process as a whole is pending.
bool IsPending(pid_t pid, int signal);

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_PROC_H_
