// StatisticsResource counts the calls to the resource inside.

#ifndef DAEMON_DEVICE_MEMORY_STATISTICS_RESOURCE_H_
#define DAEMON_DEVICE_MEMORY_STATISTICS_RESOURCE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "daemon/device/memory/memory_decorator.h"

namespace berth {

// Counts of successful and failed calls.
struct MemoryStatistics {
  Bytes outstanding;
  // The most bytes outstanding at once, counting blocks that were made; rejected requests do not count.
  Bytes peak;
  uint64_t allocations = 0;
  uint64_t failed_allocations = 0;
  uint64_t deallocations = 0;
  uint64_t failed_deallocations = 0;
  uint64_t handed_over = 0;
  uint64_t adopted = 0;
};

// "made 3 (1 failed), handed over 3, adopted 2, freed 2 (0 failed), outstanding 0 B, at most 64 MiB".
std::string ToString(const MemoryStatistics& statistics);

class StatisticsResource : public MemoryDecorator {
 public:
  explicit StatisticsResource(std::unique_ptr<MemoryResource> inner) : MemoryDecorator(std::move(inner)) {}

  MemoryStatistics statistics() const;

  absl::StatusOr<MemoryBlock> Allocate(Bytes bytes, absl::string_view tag) override;
  absl::Status Deallocate(MemoryBlock& block) override;
  absl::StatusOr<UniqueFd> HandOver(MemoryBlock& block) override;
  absl::StatusOr<MemoryBlock> Adopt(UniqueFd fd, absl::string_view tag) override;

 private:
  // Without `outstanding`, which statistics() reads.
  MemoryStatistics counts_;
};

}  // namespace berth

#endif  // DAEMON_DEVICE_MEMORY_STATISTICS_RESOURCE_H_
