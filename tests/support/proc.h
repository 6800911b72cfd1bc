// What /proc says of a process.

#ifndef TESTS_SUPPORT_PROC_H_
#define TESTS_SUPPORT_PROC_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace berth::testing {

struct ChildInfo {
  pid_t pid = 0;
  // Its short name, at most 15 bytes.
  std::string name;
};

// The living children of `pid`, by pid; zombies are left out.
std::vector<ChildInfo> ChildrenOf(pid_t pid);

// The living processes that were started with exactly this first word and, among others, this argument; by pid.
std::vector<ChildInfo> ProcessesWith(const std::string& program, const std::string& argument);

// Open file descriptors, without those that only wait (eventfd, epoll), of which gRPC opens more as it has more to do,
// and the GPU's, of which its driver does; and bytes resident in memory. 0 for a process that is gone.
size_t CountFds(pid_t pid);
uint64_t ResidentBytes(pid_t pid);

// Open file descriptors with what they are, for messages.
std::string DescribeFds(pid_t pid);

// Stream connections made to the Unix socket at `path` that its owner has not closed, accepted or not.
size_t CountConnections(const std::string& path);

// Whether `pid` is a process that is no zombie.
bool IsAlive(pid_t pid);

// Its letter in /proc: 'R', 'S', 'T', …; 0 for a process that is gone.
char StateOf(pid_t pid);

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_PROC_H_
