// Runs with several seeds (one in the gate), or with the one that BERTH_SIM_SEED names.

#ifndef TESTS_SIM_SEEDS_H_
#define TESTS_SIM_SEEDS_H_

#include <cstdint>
#include <random>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/environment.h"

namespace berth::sim {

// Calls run(draw) once for each of `count` seeds, in the gate for the first seed only; draw(below) is a random number
// from 0 to below - 1. Stops at the first failure and prints its seed.
template <typename Run>
void Seeds(uint64_t count, Run run) {
  const uint64_t one = testing::FromEnvironment("BERTH_SIM_SEED", 0);
  count = testing::GateOrSoak(1, count);
  for (uint64_t seed = one != 0 ? one : 1; seed <= (one != 0 ? one : count); ++seed) {
    SCOPED_TRACE(absl::StrCat("replay: BERTH_SIM_SEED=", seed));
    std::mt19937_64 random(seed);
    run([&random](uint64_t below) { return random() % below; });
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace berth::sim

#endif  // TESTS_SIM_SEEDS_H_
