// Crowd: clients whose sessions, blocks and permits fill a daemon.

#ifndef TESTS_BENCH_MEASUREMENTS_CROWD_H_
#define TESTS_BENCH_MEASUREMENTS_CROWD_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <berth/bytes.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/bench/child_process.h"
#include "tests/bench/measurements/hoard.h"
#include "tests/bench/servers.h"

namespace berth::bench {

// The clients hold everything until another command, or until destroyed. Errors of every step: kInternal where a client
// failed, which reports it on its standard error.
class Crowd {
 public:
  static constexpr Bytes kBlock = MiB(2);
  static constexpr size_t kSessions = 1'000;
  static constexpr size_t kProcesses = 10;
  static_assert(kSessions % kProcesses == 0);

  // Returns the daemon's flags with enough capacity for the crowd; permits only for those held.
  static std::vector<std::string> Flags(const Programs& programs, const HoardShare& share);
  // Returns once all clients hold their share; requests that wait may still be about to be sent.
  static absl::StatusOr<Crowd> Start(const Programs& programs, const std::string& folder, const HoardShare& share);

  // Each client checks every block that it has written.
  absl::Status CheckBytes() { return Have('c'); }
  // Each client releases its permits, and gets those that it waits for.
  absl::Status PassPermitsOn() { return Have('p'); }
  // Each client releases all its permits and blocks.
  absl::Status Return() { return Have('r'); }

 private:
  explicit Crowd(Pipe facts) : facts_(std::move(facts)) {}
  // Waits until each client has reported once that it is done.
  absl::Status AwaitAll();
  // Sends the command to all clients, and waits for them.
  absl::Status Have(char command);

  struct Client {
    UniqueFd commands;
    ChildProcess process;
  };
  Pipe facts_;
  std::vector<Client> clients_;
};

}  // namespace berth::bench

#endif  // TESTS_BENCH_MEASUREMENTS_CROWD_H_
