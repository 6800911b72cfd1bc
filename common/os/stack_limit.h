// Checks the size of this process's stacks. A process whose stack overflows dies of SIGSEGV.

#ifndef COMMON_OS_STACK_LIMIT_H_
#define COMMON_OS_STACK_LIMIT_H_

#include <stddef.h>

namespace berth {

// The least stack of a thread with which the daemon, `berth` and gRPC work: twice what they need on host memory.
inline constexpr size_t kMinStackBytes = 128 << 10;

// The largest stack that a thread of the daemon or of `berth` needs, and the kernel's default of RLIMIT_STACK.
inline constexpr size_t kMaxStackBytes = 8 << 20;

// Returns the size of a new thread's stack: RLIMIT_STACK at the program's start, unless the program has set another.
size_t StackBytes();

// Returns whether StackBytes() is too small. Then writes the reason and the way out to `why`. Allocates no memory.
bool LacksStack(char* why, size_t size);

// Bounds StackBytes() by kMaxStackBytes: with a very high RLIMIT_STACK, no thread could start. The main thread and the
// programs that this process executes keep the limit.
void BoundStacks();

}  // namespace berth

#endif  // COMMON_OS_STACK_LIMIT_H_
