// Flood: a process that floods a daemon's socket (tests/support/flooder.cc has the kinds), while a test does what it is
// about.

#ifndef TESTS_SUPPORT_FLOOD_H_
#define TESTS_SUPPORT_FLOOD_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "tests/support/subprocess.h"

namespace berth::testing {

// Move-only; the flood ends with it.
class Flood {
 public:
  // What became of its connections.
  struct Outcome {
    uint64_t opened = 0;
    // By the daemon.
    uint64_t ended = 0;
  };

  // Returns once it has begun. Fatal where the program cannot be started; it is data of the test.
  static Flood Start(absl::string_view kind, const std::string& socket, int connections);

  // Ends it.
  Outcome Stop();

 private:
  explicit Flood(Subprocess process) : process_(std::move(process)) {}
  Subprocess process_;
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_FLOOD_H_
