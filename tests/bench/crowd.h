// Crowd: clients whose sessions and blocks fill a daemon.

#ifndef TESTS_BENCH_CROWD_H_
#define TESTS_BENCH_CROWD_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/bytes.h"
#include "tests/bench/child_process.h"
#include "tests/bench/servers.h"

namespace berth::bench {

// They hold all of it until destroyed.
class Crowd {
 public:
  static constexpr Bytes kBlock = MiB(2);
  static constexpr size_t kBlocks = 10'000;
  static constexpr size_t kSessions = 1'000;
  static constexpr size_t kProcesses = 10;
  static_assert(kBlocks % kSessions == 0 && kSessions % kProcesses == 0);

  // What a daemon must be told to have room for them.
  static std::vector<std::string> Flags(const Programs& programs);
  // Returns once all have what they hold.
  static absl::StatusOr<Crowd> Start(const Programs& programs, const std::string& folder);

 private:
  std::vector<ChildProcess> children_;
};

}  // namespace berth::bench

#endif  // TESTS_BENCH_CROWD_H_
