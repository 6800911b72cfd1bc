// LoggingResource records every call to the resource inside, and its result.

#ifndef DAEMON_DEVICE_MEMORY_LOGGING_RESOURCE_H_
#define DAEMON_DEVICE_MEMORY_LOGGING_RESOURCE_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "daemon/device/memory/memory_decorator.h"
#include "daemon/device/memory/memory_log.h"

namespace berth {

// Records that the sink rejects are counted, without further effect.
class LoggingResource : public MemoryDecorator {
 public:
  // `sink` outlives the resource.
  LoggingResource(std::unique_ptr<MemoryResource> inner, MemoryLogSink* sink)
      : MemoryDecorator(std::move(inner)), sink_(*sink) {}

  uint64_t dropped_records() const { return dropped_records_; }

  absl::StatusOr<MemoryBlock> Allocate(Bytes bytes, absl::string_view tag) override;
  absl::Status Deallocate(MemoryBlock& block) override;
  absl::StatusOr<UniqueFd> HandOver(MemoryBlock& block) override;
  absl::StatusOr<MemoryBlock> Adopt(UniqueFd fd, absl::string_view tag) override;
  absl::Status Reap() override;

 private:
  // Completes `record` with the result and appends it.
  void Record(MemoryRecord record, const absl::Status& status);

  MemoryLogSink& sink_;
  uint64_t dropped_records_ = 0;
};

}  // namespace berth

#endif  // DAEMON_DEVICE_MEMORY_LOGGING_RESOURCE_H_
