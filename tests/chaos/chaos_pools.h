// The pools that the chaos and its checks share.

#ifndef TESTS_CHAOS_CHAOS_POOLS_H_
#define TESTS_CHAOS_CHAOS_POOLS_H_

#include <cstdint>

namespace berth::testing {

struct ChaosPool {
  const char* name;
  // The pool's number in histories.
  uint32_t number;
  uint64_t cap;
  // The most units of one acquire.
  uint64_t most_units;
  // Whether some acquires are exclusive.
  bool exclusive;
};

inline constexpr ChaosPool kChaosPools[] = {
    {.name = "gpu-tests", .number = 0, .cap = 2, .most_units = 1, .exclusive = false},
    {.name = "weighted", .number = 1, .cap = 6, .most_units = 4, .exclusive = true},
};

// Size of each published block.
inline constexpr uint64_t kPublishedBytes = 2 << 20;

}  // namespace berth::testing

#endif  // TESTS_CHAOS_CHAOS_POOLS_H_
