// The reports of a bench_client on its pipe.

#ifndef TESTS_BENCH_WITNESS_H_
#define TESTS_BENCH_WITNESS_H_

#include <cstdint>

namespace berth::bench {

// One fact, smaller than PIPE_BUF: many processes share a pipe, and their facts arrive whole and in order.
struct Fact {
  enum class Kind : uint32_t {
    // Has a permit; reported after the grant.
    kHolds = 1,
    // Will release it; reported before the release. So the reported time lies inside the true time.
    kReleases = 2,
    // Is connected, and sends requests from now on.
    kReady = 3,
    // Sends a request now.
    kAsks = 4,
    // Has carried out a command.
    kDone = 5,
    // Failed to carry it out.
    kFailed = 6,
  };
  Kind kind;
  int32_t pid;
  // By MonotonicNanoseconds().
  int64_t nanoseconds;
};

}  // namespace berth::bench

#endif  // TESTS_BENCH_WITNESS_H_
