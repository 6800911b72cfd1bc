// Replays a memory log's records of one device (berthd's [log] file, or `berth log --json`) against a backend. Each
// block is allocated where the log shows its allocation, and released where the log shows its release by the driver. So
// a node's history becomes a load for another backend, driver or card, whose peak demand is measured.

#ifndef TESTS_REPLAY_REPLAY_H_
#define TESTS_REPLAY_REPLAY_H_

#include <cstdint>
#include <istream>
#include <string>
#include <vector>

#include <berth/bytes.h>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/device/memory/memory_resource.h"

namespace berth::replay {

struct Result {
  // Records of the device, including those that neither allocate nor release memory.
  uint64_t records = 0;
  uint64_t allocations = 0;
  uint64_t releases = 0;
  // Operations in the log that the backend refused; with the first message of each kind.
  uint64_t failed_allocations = 0;
  uint64_t failed_releases = 0;
  std::vector<std::string> failures;
  // Releases of memory that was allocated before the log's start.
  uint64_t unknown_releases = 0;
  // Gaps in the record numbers: records that the file lacks.
  uint64_t missing = 0;
  Bytes peak;
  // Memory still allocated at the log's end.
  Bytes left;
  // Duration of each call.
  std::vector<absl::Duration> allocate_times;
  std::vector<absl::Duration> release_times;
};

// Replays `log`, one JSON object of berth.v1.LogRecord per line, to its end; releases the remaining memory. Errors:
// kInvalidArgument naming an invalid line. The result reports failures of the backend.
absl::StatusOr<Result> Replay(std::istream& log, uint32_t device, MemoryResource& resource);

}  // namespace berth::replay

#endif  // TESTS_REPLAY_REPLAY_H_
