// The rows of blocks and their imports, and how memory goes on after a restart.

#include <algorithm>
#include <utility>
#include <vector>

#include "daemon/core/core_impl.h"

namespace berth::core {

bool Core::Impl::WriteImport(BlockId id, ImportId import, ArchiveWriter& archive) const {
  const Block* const block = blocks_.Find(id);
  if (block == nullptr) return false;
  const auto found = block->imports.find(import);
  if (found == block->imports.end()) return false;
  archive(found->second);
  return true;
}

void Core::Impl::ReadBlock(BlockId id, ArchiveReader& archive) {
  Block read;
  archive(read);
  read.id = id;
  if (archive.failed() || read.phase == BlockPhase::kGone || !devices_.contains(read.device) ||
      (read.charged_session && sessions_.Find(read.charged_session) == nullptr) ||
      (read.phase == BlockPhase::kReserved && !pending_.contains(read.request))) {
    return archive.Fail();
  }
  read.asked_earlier = InTheMaking(read.phase);
  // What no worker is asked again goes on with Resume().
  read.asked = read.phase == BlockPhase::kAbandoned ||
               (read.phase == BlockPhase::kRetired && !read.busy && IsLost(read));
  const Block* const block = blocks_.Restore(std::move(read));
  if (block == nullptr) return archive.Fail();
  RestoreBlock(*block);
}

void Core::Impl::RestoreBlock(const Block& block) {
  Device& device = DeviceOf(block);
  ForEachBudget(block, [&](ByteBudget& budget) {
    budget.RestoreBlock(block.phase, block.bytes, block.stuck, block.busy);
  });
  if (block.lane() == Lane::kContext) ++device.context.blocks;
  switch (block.phase) {
    case BlockPhase::kWarming:
    case BlockPhase::kWarm:
      // No more sizes than were on the shelf.
      device.warm.NoteAsked(block.bytes);
      device.warm.Put(block.bytes, block.generation, block.id, block.phase == BlockPhase::kWarm);
      break;
    case BlockPhase::kReserved:
      pending_.at(block.request).place = block.id;
      NoteWaits(block.request);
      break;
    case BlockPhase::kRetired:
      device.releases_asked += block.asked ? 1 : 0;
      break;
    default:
      break;
  }
  if (!block.busy) return;
  busy_.insert(block.id);
  next_poll_ = absl::InfinitePast();
}

void Core::Impl::ReadImport(BlockId block, ImportId id, ArchiveReader& archive) {
  core::Import import;
  archive(import);
  import.id = id;
  if (archive.failed() || sessions_.FindChannel(import.channel) == nullptr ||
      blocks_.Restore(block, std::move(import)) == nullptr) {
    archive.Fail();
  }
}

void Core::BlockLost(absl::Time now, BlockId block, Effects* effects) {
  const Step step = impl_->Begin(now, effects);
  Block* const lost = impl_->blocks_.Find(block);
  // A context worker keeps what it makes itself.
  if (lost == nullptr || lost->lane() == Lane::kContext) return;
  if (lost->phase == BlockPhase::kWarm) impl_->Abandon(step, *lost);
  // One that is freed already waits for its importers.
  if (lost->phase == BlockPhase::kLive) impl_->FreeBlock(step, *lost, LogCause::kLost);
}

void Core::Impl::ResumeMemory(const Step& step) {
  std::vector<BlockId> abandoned;
  blocks_.ForEach([&](const Block& block) {
    if (block.phase == BlockPhase::kAbandoned) abandoned.push_back(block.id);
    if (block.phase != BlockPhase::kRetired || !block.asked || !IsLost(block)) return;
    Emit(step, ReleaseBlock{.device = block.device, .lane = block.lane(), .block = block.id, .lost = true});
  });
  for (auto& [ordinal, device] : devices_) {
    const std::vector<Bytes> sizes = device.warm.sizes();
    for (const BlockId id : device.warm.All()) {
      Block& block = *blocks_.Find(id);
      const bool kept = std::find(sizes.begin(), sizes.end(), block.bytes) != sizes.end();
      if (!kept || block.memory_generation < device.main.generation) Abandon(step, block);
    }
  }
  for (const BlockId id : abandoned) {
    // It may have been made, for nobody; what never was is released at once.
    Block& block = *blocks_.Find(id);
    block.asked = false;
    Apply(step, block, BlockEvent::kMade);
  }
  fences_.streams().CloseQuiet();
  for (const auto& [ordinal, device] : devices_) {
    // The vault may not have got to hear it.
    if (!device.drain_known) continue;
    Emit(step, OrderDevice{.device = ordinal,
                           .order = device.drain_reason.empty() ? DeviceOrder::kUndrain : DeviceOrder::kDrain,
                           .why = device.drain_reason});
  }
  if (!busy_.empty()) PollSoon(step);
  NoteRoom();
}

}  // namespace berth::core
