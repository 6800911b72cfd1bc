// Parameters of a test run that the environment may set: amount, duration, seed.
//
// A test runs in the gate or in the soak. The gate (tests/run) must end within minutes: a test repeats little, and
// always draws from the same seed. The soak (tests/run --all, BERTH_SOAK=1) repeats at full length, from a random seed.
// BUILD files tag tests with a short form `scaled`, and tests without one `soak`.
#ifndef TESTS_SUPPORT_ENVIRONMENT_H_
#define TESTS_SUPPORT_ENVIRONMENT_H_

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>

#include "absl/strings/numbers.h"

namespace berth::testing {

// Returns the variable's value, or `otherwise` where it is unset or no whole number.
inline uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  uint64_t number = 0;
  return text != nullptr && absl::SimpleAtoi(text, &number) ? number : otherwise;
}

// Whether the test runs in the soak.
inline bool Soaks() { return FromEnvironment("BERTH_SOAK", 0) != 0; }

inline uint64_t GateOrSoak(uint64_t gate, uint64_t soak) { return Soaks() ? soak : gate; }

// Returns the seed that variable `name` sets; by default 1 in the gate, and a random seed in the soak. Prints the seed:
// a test that dies cannot name it later.
inline uint64_t SeedFromEnvironment(const char* name) {
  const uint64_t seed = FromEnvironment(name, Soaks() ? std::random_device()() : 1);
  std::cout << name << "=" << seed << std::endl;
  return seed;
}

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_ENVIRONMENT_H_
