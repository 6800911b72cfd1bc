// What a bench_client tells on its pipe.

#ifndef TESTS_BENCH_WITNESS_H_
#define TESTS_BENCH_WITNESS_H_

#include <cstdint>

namespace berth::bench {

// One fact, smaller than PIPE_BUF, so that many processes share a pipe and their facts arrive whole and in
// the order in which they were told.
struct Fact {
  enum class Kind : uint32_t {
    // Has a permit, told after the grant.
    kHolds = 1,
    // Will release it, told before the release. So what is told lies inside what is true.
    kReleases = 2,
    // Is connected, and will ask from now on.
    kReady = 3,
    // Asks now.
    kAsks = 4,
    // Has done what it was told.
    kDone = 5,
    // Could not.
    kFailed = 6,
  };
  Kind kind;
  int32_t pid;
  // Of MonotonicNanoseconds().
  int64_t nanoseconds;
};

}  // namespace berth::bench

#endif  // TESTS_BENCH_WITNESS_H_
