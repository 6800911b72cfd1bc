// Log records of the calls on a device's memory, and their sinks.

#ifndef DAEMON_DEVICE_MEMORY_MEMORY_LOG_H_
#define DAEMON_DEVICE_MEMORY_MEMORY_LOG_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include <berth/bytes.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace berth {

enum class MemoryAction { kAllocate, kDeallocate, kHandOver, kAdopt, kReap };

absl::string_view MemoryActionName(MemoryAction action);

// One call and its result. No record contains an IPC handle or an address.
struct MemoryRecord {
  // Limit of a message, in bytes, without the ellipsis of a truncated one.
  static constexpr size_t kMaxMessageBytes = 256;

  // Sequence number over all devices of the process, from 1 on, strictly rising.
  uint64_t order = 0;
  absl::Time time;
  MemoryAction action = MemoryAction::kAllocate;
  std::string device;
  // Generation of the block; 0 without a block: for a failed allocation, and for a reap.
  uint64_t generation = 0;
  // Requested bytes, for an allocation.
  Bytes bytes;
  std::string tag;
  // "OK", a refusal's reason such as "OUT_OF_MEMORY", or else the status code's name.
  std::string result;
  // Error message; empty on success.
  std::string message;
};

// Returns one line for people.
std::string ToString(const MemoryRecord& record);

// Destination of records.
class MemoryLogSink {
 public:
  virtual ~MemoryLogSink() = default;
  // Appends the record. Errors: why it was rejected; the caller continues in any case.
  virtual absl::Status Append(const MemoryRecord& record) = 0;
};

// Ring of the last `capacity` records. Thread-compatible.
class MemoryLogRing : public MemoryLogSink {
 public:
  // Requires: capacity > 0.
  explicit MemoryLogRing(size_t capacity) : capacity_(capacity) {}

  absl::Status Append(const MemoryRecord& record) override;
  // Returns the records, oldest first.
  std::vector<MemoryRecord> records() const { return {records_.begin(), records_.end()}; }

 private:
  const size_t capacity_;
  std::deque<MemoryRecord> records_;
};

}  // namespace berth

#endif  // DAEMON_DEVICE_MEMORY_MEMORY_LOG_H_
