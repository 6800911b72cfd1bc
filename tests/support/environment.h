// Parameters of a test's run that the environment sets: repetitions, length, seed.
//
// A test runs in one of two lanes. The gate (tests/run) must end within minutes: a test repeats little and always draws
// from the same seed. The soak (tests/run --all, BERTH_SOAK=1) repeats as often as a verdict is worth, from a random
// seed. BUILD files tag tests with a short form `scaled`, and tests without one `soak`.
#ifndef BERTH_TESTS_SUPPORT_ENVIRONMENT_H_
#define BERTH_TESTS_SUPPORT_ENVIRONMENT_H_

#include <cstdint>
#include <cstdlib>
#include <random>

#include "absl/strings/numbers.h"

namespace berth::testing {

// The variable's value, or `otherwise` where it is not set or no whole number.
inline uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  uint64_t number = 0;
  return text != nullptr && absl::SimpleAtoi(text, &number) ? number : otherwise;
}

// Reports whether the test runs in the soak.
inline bool Soaks() { return FromEnvironment("BERTH_SOAK", 0) != 0; }

// Returns the value for the lane that the test runs in.
inline uint64_t ByLane(uint64_t gate, uint64_t soak) { return Soaks() ? soak : gate; }

// Returns the seed that `name` sets; by default 1 in the gate and a random one in the soak.
inline uint64_t SeedFromEnvironment(const char* name) {
  return FromEnvironment(name, Soaks() ? std::random_device()() : 1);
}

}  // namespace berth::testing

#endif  // BERTH_TESTS_SUPPORT_ENVIRONMENT_H_
