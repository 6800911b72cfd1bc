// What a bench_client says on its pipe, and the count that can be drawn from it.

#ifndef TESTS_BENCH_WITNESS_H_
#define TESTS_BENCH_WITNESS_H_

#include <cstdint>
#include <ctime>

namespace berth::bench {

// One fact, smaller than PIPE_BUF, so that many processes share a pipe and their facts arrive whole and in the order in
// which they were told.
struct Fact {
  enum class Kind : uint32_t {
    // Has a permit, told after the grant.
    kHolds = 1,
    // Will release it, told before the release. So what is told lies inside what is true.
    kReleases = 2,
  };
  Kind kind;
  int32_t pid;
  // On CLOCK_MONOTONIC, which is one for all processes.
  int64_t nanoseconds;
};

inline int64_t MonotonicNanoseconds() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

}  // namespace berth::bench

#endif  // TESTS_BENCH_WITNESS_H_
