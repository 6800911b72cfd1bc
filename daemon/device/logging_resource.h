// LoggingResource notes every call to the resource inside, and how it ended.

#ifndef DAEMON_DEVICE_LOGGING_RESOURCE_H_
#define DAEMON_DEVICE_LOGGING_RESOURCE_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "daemon/device/memory_decorator.h"
#include "daemon/device/memory_log.h"

namespace berth {

// What the sink does not take is counted, and changes nothing else.
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
  // Notes what came of it. `record` says the rest.
  void Note(MemoryRecord record, const absl::Status& status);

  MemoryLogSink& sink_;
  uint64_t dropped_records_ = 0;
};

}  // namespace berth

#endif  // DAEMON_DEVICE_LOGGING_RESOURCE_H_
