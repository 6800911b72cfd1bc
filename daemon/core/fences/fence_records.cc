// Ledger records of the fence table: open uses, and the marks of blocks.

#include "daemon/core/fences/fence_table.h"

namespace berth::core {

void FenceTable::ListRecords(std::vector<RecordKey>* keys) const {
  for (const auto& [id, use] : uses_) keys->push_back(KeyOf(RecordKind::kUse, id.value()));
  for (const auto& [block, fence] : fences_) keys->push_back(KeyOf(RecordKind::kFence, block.value()));
}

bool FenceTable::WriteRecord(const RecordKey& key, ArchiveWriter& archive) const {
  if (key.kind == static_cast<uint32_t>(RecordKind::kUse)) {
    const auto use = uses_.find(UseId(key.id));
    if (use == uses_.end()) return false;
    archive(use->second);
    return true;
  }
  const auto fence = fences_.find(BlockId(key.id));
  if (fence == fences_.end()) return false;
  archive(fence->second);
  return true;
}

void FenceTable::ReadRecord(const RecordKey& key, ArchiveReader& archive) {
  if (key.kind == static_cast<uint32_t>(RecordKind::kFence)) return archive(fences_[BlockId(key.id)]);
  const UseId id(key.id);
  OpenUse use;
  archive(use);
  if (archive.failed() || key.id > last_use_ || streams_.Find(use.stream) == nullptr) return archive.Fail();
  streams_.AddUse(use.stream);
  for (const BlockUse& block : use.blocks) fences_[block.block].open.emplace(id, block.access);
  uses_.emplace(id, std::move(use));
}

}  // namespace berth::core
