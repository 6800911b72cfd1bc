// GuardResource finds memory that is given out twice, and makes the use of memory that was never written, or that was
// freed, show.

#ifndef DAEMON_DEVICE_GUARD_RESOURCE_H_
#define DAEMON_DEVICE_GUARD_RESOURCE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "daemon/device/memory_decorator.h"

namespace berth {

// What is written over memory, for whoever reads it where he should not. It costs the time of writing all of it, and a
// block that is poisoned when it is made does not read as zeroes.
struct Poison {
  // When it is made, before anybody has it.
  bool fresh = false;
  // Before it is freed.
  bool freed = false;
};

// Reads "", "fresh", "freed" or "fresh,freed".
// Errors: kInvalidArgument naming the text.
absl::StatusOr<Poison> ParsePoison(absl::string_view text);

// Memory that this process cannot reach is neither compared nor poisoned.
class GuardResource : public MemoryDecorator {
 public:
  static constexpr uint8_t kPoison = 0xDD;

  GuardResource(std::unique_ptr<MemoryResource> inner, Poison poison);

  // Memory that overlaps a block's is given to nobody, and never freed: that might free the block's.
  // Errors: kInternal for it.
  absl::StatusOr<MemoryBlock> Allocate(Bytes bytes, absl::string_view tag) override;
  absl::Status Deallocate(MemoryBlock& block) override;
  absl::StatusOr<UniqueFd> HandOver(MemoryBlock& block) override;

 private:
  // Overwrites the block where that is possible.
  absl::Status PoisonBlock(const MemoryBlock& block);
  bool Overlaps(const MemoryBlock& block) const;
  void Forget(const MemoryBlock& block);

  const Poison poison_;
  // Where blocks end, by where they start; where they start, by generation.
  std::map<uint64_t, uint64_t> ends_;
  std::map<uint64_t, uint64_t> starts_;
  std::vector<MemoryBlock> quarantined_;
};

}  // namespace berth

#endif  // DAEMON_DEVICE_GUARD_RESOURCE_H_
