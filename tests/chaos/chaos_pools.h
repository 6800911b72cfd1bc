// What those who make chaos and those who look at it agree on.

#ifndef TESTS_CHAOS_CHAOS_POOLS_H_
#define TESTS_CHAOS_CHAOS_POOLS_H_

#include <cstdint>

namespace berth::testing {

struct ChaosPool {
  const char* name;
  // In histories.
  uint32_t number;
  uint64_t cap;
  // That one acquire asks for.
  uint64_t most_units;
  // Whether some acquires want it for themselves.
  bool exclusive;
};

inline constexpr ChaosPool kChaosPools[] = {
    {.name = "gpu-tests", .number = 0, .cap = 2, .most_units = 1, .exclusive = false},
    {.name = "weighted", .number = 1, .cap = 6, .most_units = 4, .exclusive = true},
};

// Of each block that is published.
inline constexpr uint64_t kPublishedBytes = 2 << 20;

}  // namespace berth::testing

#endif  // TESTS_CHAOS_CHAOS_POOLS_H_
