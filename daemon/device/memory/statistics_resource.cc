#include "daemon/device/memory/statistics_resource.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace berth {

std::string ToString(const MemoryStatistics& statistics) {
  return absl::StrCat("made ", statistics.allocations, " (", statistics.failed_allocations,
                      " failed), handed over ", statistics.handed_over, ", adopted ", statistics.adopted,
                      ", freed ", statistics.deallocations, " (", statistics.failed_deallocations,
                      " failed), outstanding ", FormatBytes(statistics.outstanding), ", at most ",
                      FormatBytes(statistics.peak));
}

MemoryStatistics StatisticsResource::statistics() const {
  MemoryStatistics statistics = counts_;
  statistics.outstanding = outstanding();
  return statistics;
}

absl::StatusOr<MemoryBlock> StatisticsResource::Allocate(Bytes bytes, absl::string_view tag) {
  absl::StatusOr<MemoryBlock> block = inner().Allocate(bytes, tag);
  ++(block.ok() ? counts_.allocations : counts_.failed_allocations);
  if (block.ok()) counts_.peak = std::max(counts_.peak, outstanding());
  return block;
}

absl::Status StatisticsResource::Deallocate(MemoryBlock& block) {
  const absl::Status status = inner().Deallocate(block);
  ++(status.ok() ? counts_.deallocations : counts_.failed_deallocations);
  return status;
}

absl::StatusOr<UniqueFd> StatisticsResource::HandOver(MemoryBlock& block) {
  absl::StatusOr<UniqueFd> fd = inner().HandOver(block);
  if (fd.ok()) ++counts_.handed_over;
  return fd;
}

absl::StatusOr<MemoryBlock> StatisticsResource::Adopt(UniqueFd fd, absl::string_view tag) {
  absl::StatusOr<MemoryBlock> block = inner().Adopt(std::move(fd), tag);
  if (block.ok()) ++counts_.adopted;
  return block;
}

}  // namespace berth
