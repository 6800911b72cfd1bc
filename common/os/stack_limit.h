// Checks the size of this process's stacks. A process whose stack overflows dies of SIGSEGV.

#ifndef COMMON_OS_STACK_LIMIT_H_
#define COMMON_OS_STACK_LIMIT_H_

#include <stddef.h>

namespace berth {

// The least stack of a thread with which the daemon, `berth` and gRPC work: twice what they need on host memory.
inline constexpr size_t kMinStackBytes = 128 << 10;

// Returns the size of a new thread's stack: RLIMIT_STACK at the program's start, unless the program has set another.
size_t StackBytes();

// Returns whether StackBytes() is too small. Then writes the reason and the way out to `why`. Allocates no memory.
bool LacksStack(char* why, size_t size);

}  // namespace berth

#endif  // COMMON_OS_STACK_LIMIT_H_
