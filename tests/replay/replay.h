// Replays what a node's log says of one device's memory (berthd's [log] file, or `berth log --json`) against a backend:
// each block is allocated where the log has it allocated, and given back where the driver had it back. So what a node
// did is a load for another backend, another driver or another card, and what it asks of the peak is a figure.

#ifndef TESTS_REPLAY_REPLAY_H_
#define TESTS_REPLAY_REPLAY_H_

#include <cstdint>
#include <istream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/bytes.h"
#include "daemon/device/memory_resource.h"

namespace berth::replay {

struct Result {
  // Of the device; records that say nothing of memory that came or went are among them.
  uint64_t records = 0;
  uint64_t allocations = 0;
  uint64_t releases = 0;
  // The log has it, the backend refused it; with what the first of each kind said.
  uint64_t failed_allocations = 0;
  uint64_t failed_releases = 0;
  std::vector<std::string> failures;
  // Releases of what was allocated before the log begins.
  uint64_t unknown_releases = 0;
  // Numbers that the log skips: what the file did not take.
  uint64_t missing = 0;
  Bytes peak;
  // What is allocated at the log's end.
  Bytes left;
  // How long each call took.
  std::vector<absl::Duration> allocate_times;
  std::vector<absl::Duration> release_times;
};

// Reads `log`, one JSON object of berth.v1.LogRecord a line, to its end. What is left is given back.
// Errors: kInvalidArgument naming the line that is none. Failures of the backend are the result's.
absl::StatusOr<Result> Replay(std::istream& log, uint32_t device, MemoryResource& resource);

}  // namespace berth::replay

#endif  // TESTS_REPLAY_REPLAY_H_
