// Ledger records of blocks and their imports, and the check of blocks.

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/core/managers.h"
#include "daemon/core/memory/blocks.h"

namespace berth::core {
namespace {

absl::Status Broken(const absl::AlphaNum& what) { return absl::InternalError(what.Piece()); }

}  // namespace

bool Blocks::WriteImport(BlockId id, ImportId import, ArchiveWriter& archive) const {
  const Block* const block = blocks_.Find(id);
  if (block == nullptr) return false;
  const auto found = block->imports.find(import);
  if (found == block->imports.end()) return false;
  archive(found->second);
  return true;
}

void Blocks::ReadBlock(BlockId id, ArchiveReader& archive) {
  Block read;
  archive(read);
  read.id = id;
  if (archive.failed() || read.phase == BlockPhase::kGone || !core_.devices.Has(read.device) ||
      (read.charged_session && core_.sessions.table().Find(read.charged_session) == nullptr) ||
      (read.phase == BlockPhase::kReserved && !core_.requests.pending().contains(read.request))) {
    return archive.Fail();
  }
  read.asked_earlier = InTheMaking(read.phase);
  // No worker gets a command for these blocks; Managers::ResumeMemory() settles them.
  read.asked =
      read.phase == BlockPhase::kAbandoned || (read.phase == BlockPhase::kRetired && !read.busy && IsLost(read));
  const Block* const block = blocks_.Restore(std::move(read));
  if (block == nullptr) return archive.Fail();
  RestoreBlock(*block);
}

void Blocks::RestoreBlock(const Block& block) {
  Device& device = core_.devices.DeviceOf(block);
  core_.budgets.ForEachBudget(
      block, [&](ByteBudget& budget) { budget.RestoreBlock(block.phase, block.bytes, block.stuck, block.busy); });
  if (block.worker_kind() == WorkerKind::kContext) ++device.context.blocks;
  switch (block.phase) {
    case BlockPhase::kWarming:
    case BlockPhase::kWarm:
      // Restores no more sizes than the warm cache had.
      device.warm.RecordAsked(block.bytes);
      device.warm.Put(block.bytes, block.generation, block.id, block.phase == BlockPhase::kWarm);
      break;
    case BlockPhase::kReserved:
      core_.requests.SetPlace(block.request, this, {.number = block.id.value()});
      core_.requests.MarkWaiting(block.request);
      break;
    case BlockPhase::kRetired:
      device.releases_asked += block.asked ? 1 : 0;
      break;
    default:
      break;
  }
  if (block.busy) core_.fences.RestoreBusy(block.id);
}

void Blocks::ReadImport(BlockId block, ImportId id, ArchiveReader& archive) {
  core::Import import;
  archive(import);
  import.id = id;
  if (archive.failed() || core_.sessions.table().FindChannel(import.channel) == nullptr ||
      blocks_.Restore(block, std::move(import)) == nullptr) {
    archive.Fail();
  }
}

absl::Status Blocks::CheckBlocks() const {
  absl::Status status = absl::OkStatus();
  blocks_.ForEach([&](const Block& block) {
    const bool needs_owner = block.phase == BlockPhase::kReserved || block.phase == BlockPhase::kLive;
    if (needs_owner && !block.published && core_.sessions.table().Find(block.owner) == nullptr)
      status = Broken("a block's owner has ended");
    if (block.phase == BlockPhase::kReserved && !core_.requests.pending().contains(block.request)) {
      status = Broken("a block is allocated for no request");
    }
    if (block.phase == BlockPhase::kAbandoned && !block.asked)
      status = Broken("an abandoned block is still in the table");
    if (block.stuck && block.phase != BlockPhase::kRetired) status = Broken("a stuck block is not retired");
    if (block.busy != core_.fences.IsBusy(block.id)) status = Broken("a freed block's uses are recorded wrongly");
    for (const auto& [id, import] : block.imports) {
      const Channel* const channel = core_.sessions.table().FindChannel(import.channel);
      if (channel == nullptr || channel->session != import.session) status = Broken("a block has an absent importer");
    }
  });
  return status;
}

}  // namespace berth::core
