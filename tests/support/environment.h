// Parameters of a test run that the environment may set: amount, duration, seed.
#ifndef TESTS_SUPPORT_ENVIRONMENT_H_
#define TESTS_SUPPORT_ENVIRONMENT_H_

#include <cstdint>
#include <cstdlib>

#include "absl/strings/numbers.h"

namespace berth::testing {

// Returns the variable's value, or `otherwise` where it is unset or no whole number.
inline uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  uint64_t number = 0;
  return text != nullptr && absl::SimpleAtoi(text, &number) ? number : otherwise;
}

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_ENVIRONMENT_H_
