// Patient: the upper bounds of Berth's own short waits, longer where tests run it beside other work.
//
// A process that the machine stalls for seconds exceeds bounds that a healthy process never comes near. Tests set
// BERTH_TEST_PATIENCE to a factor, for the daemon and its clients alike. Apply the factor only to a bound that a test
// does not wait for. Never apply it to an interval whose end means something: an absence, the age of a reading, a
// caller's own time-out.
#ifndef COMMON_PATIENCE_H_
#define COMMON_PATIENCE_H_

#include "absl/time/time.h"

namespace berth {

// Returns the factor that BERTH_TEST_PATIENCE sets, at most 1,000; 1 where it is unset or no whole number. Read once in
// the process's life. A build with NDEBUG never reads it and returns 1.
int PatienceFactor();

// Returns `bound`, an absl or std::chrono duration, times the factor.
template <typename Duration>
Duration Patient(Duration bound) {
  return bound * PatienceFactor();
}

// Returns the number of milliseconds that the environment variable sets; 0 where it is unset or no whole number. A
// build with NDEBUG never reads it and returns 0.
int TestMilliseconds(const char* variable);

// Returns Patient(bound), or the time that a test sets because it waits for this one bound.
inline absl::Duration PatientUnless(const char* variable, absl::Duration bound) {
  const int set = TestMilliseconds(variable);
  return set > 0 ? absl::Milliseconds(set) : Patient(bound);
}

}  // namespace berth

#endif  // COMMON_PATIENCE_H_
