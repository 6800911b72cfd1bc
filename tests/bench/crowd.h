// Crowd: clients whose sessions, blocks and permits fill a daemon.

#ifndef TESTS_BENCH_CROWD_H_
#define TESTS_BENCH_CROWD_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/bytes.h"
#include "tests/bench/child_process.h"
#include "tests/bench/hoard.h"
#include "tests/bench/servers.h"

namespace berth::bench {

// They hold all of it until told otherwise, or destroyed. Errors of every step: kInternal where a client could not do
// it, which it says on its standard error.
class Crowd {
 public:
  static constexpr Bytes kBlock = MiB(2);
  static constexpr size_t kSessions = 1'000;
  static constexpr size_t kProcesses = 10;
  static_assert(kSessions % kProcesses == 0);

  // What a daemon must be told to have room for them; of permits, for those that are held.
  static std::vector<std::string> Flags(const Programs& programs, const HoardShare& share);
  // Returns once all have what they hold; what they wait for they may yet be about to ask for.
  static absl::StatusOr<Crowd> Start(const Programs& programs, const std::string& folder, const HoardShare& share);

  // Each looks at every block that it has written.
  absl::Status CheckBytes() { return Have('c'); }
  // Each gives its permits back, and gets those that it waits for.
  absl::Status PassPermitsOn() { return Have('p'); }
  // Each gives back all its permits and blocks.
  absl::Status Return() { return Have('r'); }

 private:
  explicit Crowd(Pipe facts) : facts_(std::move(facts)) {}
  // Waits until each client has said once that it is done.
  absl::Status AwaitAll();
  // Tells all clients to do so, and waits for them.
  absl::Status Have(char order);

  struct Client {
    UniqueFd orders;
    ChildProcess process;
  };
  Pipe facts_;
  std::vector<Client> clients_;
};

}  // namespace berth::bench

#endif  // TESTS_BENCH_CROWD_H_
