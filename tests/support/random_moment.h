// Random delays, for tests that kill a process at an arbitrary moment of its work.

#ifndef TESTS_SUPPORT_RANDOM_MOMENT_H_
#define TESTS_SUPPORT_RANDOM_MOMENT_H_

#include <cstdint>
#include <random>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace berth::testing {

// Sleeps for a random time below `most`.
inline void AwaitRandomMoment(std::mt19937_64& random, absl::Duration most) {
  absl::SleepFor(absl::Microseconds(random() % static_cast<uint64_t>(absl::ToInt64Microseconds(most))));
}

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_RANDOM_MOMENT_H_
