#include "daemon/device/memory/guard_resource.h"

#include <utility>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"

namespace berth {

absl::StatusOr<Poison> ParsePoison(absl::string_view text) {
  Poison poison;
  for (const absl::string_view word : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    if (word == "fresh") {
      poison.fresh = true;
    } else if (word == "freed") {
      poison.freed = true;
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", word, "\" is invalid: expected fresh, freed, or both with a comma"));
    }
  }
  return poison;
}

GuardResource::GuardResource(std::unique_ptr<MemoryResource> inner, Poison poison)
    : MemoryDecorator(std::move(inner)), poison_(poison) {}

absl::StatusOr<MemoryBlock> GuardResource::Allocate(Bytes bytes, absl::string_view tag) {
  BERTH_ASSIGN_OR_RETURN(MemoryBlock block, inner().Allocate(bytes, tag));
  if (block.address != 0) {
    if (Overlaps(block)) {
      const absl::Status status = absl::InternalError(
          absl::StrCat("device ", device(), " returned ", bytes.count(), " bytes that overlap an existing block"));
      quarantined_.push_back(std::move(block));
      return status;
    }
    ends_[block.address] = block.address + block.bytes.count();
    starts_[block.generation] = block.address;
  }
  if (poison_.fresh) {
    const absl::Status poisoned = PoisonBlock(block);
    if (!poisoned.ok()) {
      // Memory that cannot be freed either stays outstanding in the resource inside.
      Deallocate(block).IgnoreError();
      return poisoned;
    }
  }
  return block;
}

absl::Status GuardResource::Deallocate(MemoryBlock& block) {
  // An unknown block is rejected before any write.
  if (poison_.freed) BERTH_RETURN_IF_ERROR(PoisonBlock(block));
  BERTH_RETURN_IF_ERROR(inner().Deallocate(block));
  Forget(block);
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> GuardResource::HandOver(MemoryBlock& block) {
  BERTH_ASSIGN_OR_RETURN(UniqueFd fd, inner().HandOver(block));
  Forget(block);
  return fd;
}

absl::Status GuardResource::PoisonBlock(const MemoryBlock& block) {
  const absl::Status filled = inner().Fill(block, kPoison);
  return IsRefusal(filled, Reason::kUnsupported) ? absl::OkStatus() : filled;
}

bool GuardResource::Overlaps(const MemoryBlock& block) const {
  // Only the last block that starts before this one's end can overlap it.
  const auto after = ends_.lower_bound(block.address + block.bytes.count());
  return after != ends_.begin() && std::prev(after)->second > block.address;
}

void GuardResource::Forget(const MemoryBlock& block) {
  const auto start = starts_.find(block.generation);
  if (start == starts_.end()) return;
  ends_.erase(start->second);
  starts_.erase(start);
}

}  // namespace berth
