// GuardResource detects memory that is given out twice, and exposes the use of memory that was never written or was
// freed.

#ifndef DAEMON_DEVICE_MEMORY_GUARD_RESOURCE_H_
#define DAEMON_DEVICE_MEMORY_GUARD_RESOURCE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "daemon/device/memory/memory_decorator.h"

namespace berth {

// When memory is overwritten with the poison pattern, to expose invalid reads. Poisoning costs the time to write the
// whole block. A block poisoned on allocation does not read as zeroes.
struct Poison {
  // On allocation, before the caller has the block.
  bool fresh = false;
  // Before the block is freed.
  bool freed = false;
};

// Parses "", "fresh", "freed" or "fresh,freed".
// Errors: kInvalidArgument naming the text.
absl::StatusOr<Poison> ParsePoison(absl::string_view text);

// Neither checks nor poisons memory that this process cannot reach.
class GuardResource : public MemoryDecorator {
 public:
  static constexpr uint8_t kPoison = 0xDD;

  GuardResource(std::unique_ptr<MemoryResource> inner, Poison poison);

  // Memory that overlaps a block's is quarantined and never freed, because freeing it might free the block's memory.
  // Errors: kInternal for such memory.
  absl::StatusOr<MemoryBlock> Allocate(Bytes bytes, absl::string_view tag) override;
  absl::Status Deallocate(MemoryBlock& block) override;
  absl::StatusOr<UniqueFd> HandOver(MemoryBlock& block) override;

 private:
  // Overwrites the block if this process can reach it.
  absl::Status PoisonBlock(const MemoryBlock& block);
  bool Overlaps(const MemoryBlock& block) const;
  void Forget(const MemoryBlock& block);

  const Poison poison_;
  // Ends of blocks by their start address; start addresses by generation.
  std::map<uint64_t, uint64_t> ends_;
  std::map<uint64_t, uint64_t> starts_;
  std::vector<MemoryBlock> quarantined_;
};

}  // namespace berth

#endif  // DAEMON_DEVICE_MEMORY_GUARD_RESOURCE_H_
