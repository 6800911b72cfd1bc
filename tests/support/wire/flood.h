// Flood: a process that floods a daemon's socket (tests/support/wire/flooder.cc has the kinds) while a test runs.

#ifndef TESTS_SUPPORT_WIRE_FLOOD_H_
#define TESTS_SUPPORT_WIRE_FLOOD_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "tests/support/subprocess.h"

namespace berth::testing {

// Move-only. Destroying it ends the flood.
class Flood {
 public:
  // Result of its connections.
  struct Outcome {
    uint64_t opened = 0;
    // Ended by the daemon.
    uint64_t ended = 0;
  };

  // Returns once the flood has begun. Fatal where the program, which is data of the test, cannot be started.
  static Flood Start(absl::string_view kind, const std::string& socket, int connections);

  // Ends the flood.
  Outcome Stop();

 private:
  explicit Flood(Subprocess process) : process_(std::move(process)) {}
  Subprocess process_;
};

}  // namespace berth::testing

#endif  // TESTS_SUPPORT_WIRE_FLOOD_H_
