#include "daemon/device/memory/block_records.h"

#include <atomic>

#include <berth/error.h>

namespace berth {
namespace {

std::atomic<uint64_t> last_generation = 0;

}  // namespace

MemoryBlock BlockRecords::Add(Bytes bytes, absl::string_view tag, uint64_t address) {
  MemoryBlock block = {.generation = ++last_generation,
                       .device = device_,
                       .bytes = bytes,
                       .tag = std::string(tag),
                       .address = address};
  records_[block.generation] = {.bytes = bytes, .address = address};
  live_ += bytes.count();
  return block;
}

absl::StatusOr<BlockRecords::Record> BlockRecords::Find(const MemoryBlock& block) const {
  if (block.generation == 0 || block.generation > last_generation) {
    return Refuse(Reason::kNotFound, "no {kind} {id}",
                  {{"kind", "memory block of generation"}, {"id", block.generation}});
  }
  if (block.device != device_) {
    return Refuse(Reason::kInvalidField, "{field}: {value}, limit {limit}",
                  {{"field", "device of the memory block"}, {"value", block.device}, {"limit", device_}});
  }
  const auto found = records_.find(block.generation);
  if (found != records_.end()) return found->second;
  return Refuse(Reason::kStale, "memory block {block} is stale: {why}",
                {{"block", block.generation}, {"why", "deallocated or handed over"}});
}

void BlockRecords::Remove(const MemoryBlock& block) {
  const auto found = records_.find(block.generation);
  live_ -= found->second.bytes.count();
  records_.erase(found);
}

}  // namespace berth
