// A figure that a run of a test may be given from outside: how much, how long, from which seed.
#ifndef BERTH_TESTS_SUPPORT_ENVIRONMENT_H_
#define BERTH_TESTS_SUPPORT_ENVIRONMENT_H_

#include <cstdint>
#include <cstdlib>

#include "absl/strings/numbers.h"

namespace berth::testing {

// The variable's value, or `otherwise` where it is not set or no whole number.
inline uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  uint64_t number = 0;
  return text != nullptr && absl::SimpleAtoi(text, &number) ? number : otherwise;
}

}  // namespace berth::testing

#endif  // BERTH_TESTS_SUPPORT_ENVIRONMENT_H_
