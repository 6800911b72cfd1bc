// What was done to a device's memory, call by call, and where that is noted.

#ifndef DAEMON_DEVICE_MEMORY_LOG_H_
#define DAEMON_DEVICE_MEMORY_LOG_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/bytes.h"

namespace berth {

enum class MemoryAction { kAllocate, kDeallocate, kHandOver, kAdopt, kReap };

absl::string_view MemoryActionName(MemoryAction action);

// One call and how it ended. No record has an IPC handle or an address in it.
struct MemoryRecord {
  // Of a message, without the ellipsis where it is cut.
  static constexpr size_t kMaxMessageBytes = 256;

  // Over all devices of the process, from 1 on, rising strictly.
  uint64_t order = 0;
  absl::Time time;
  MemoryAction action = MemoryAction::kAllocate;
  std::string device;
  // 0 where no block was had: of a failed allocation, and of a reap.
  uint64_t generation = 0;
  // As asked, of an allocation.
  Bytes bytes;
  std::string tag;
  // "OK", a refusal's reason such as "OUT_OF_MEMORY", or else the status code's name.
  std::string result;
  // Empty where it went well.
  std::string message;
};

// One line for people.
std::string ToString(const MemoryRecord& record);

// Where records go.
class MemoryLogSink {
 public:
  virtual ~MemoryLogSink() = default;
  // Takes the record, or says why not; whoever logs goes on in any case.
  virtual absl::Status Append(const MemoryRecord& record) = 0;
};

// The last records. Thread-compatible.
class MemoryLogRing : public MemoryLogSink {
 public:
  // Requires: capacity > 0.
  explicit MemoryLogRing(size_t capacity) : capacity_(capacity) {}

  absl::Status Append(const MemoryRecord& record) override;
  // Oldest first.
  std::vector<MemoryRecord> records() const { return {records_.begin(), records_.end()}; }

 private:
  const size_t capacity_;
  std::deque<MemoryRecord> records_;
};

}  // namespace berth

#endif  // DAEMON_DEVICE_MEMORY_LOG_H_
