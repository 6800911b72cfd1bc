#include "daemon/core/block_table.h"

#include <utility>

#include "daemon/core/invariant.h"

namespace berth::core {

Block& BlockTable::Add(BlockId id, uint32_t device, Bytes bytes, BlockPhase phase) {
  const uint64_t generation = ++last_.generation;
  journal_.Touch(RowKind::kMemoryCounters);
  Block& block = rows_[generation];
  block.id = id;
  block.generation = generation;
  block.device = device;
  block.bytes = bytes;
  block.phase = phase;
  ++unowned_;
  const bool fresh = by_id_.emplace(id, &block).second;
  BERTH_INVARIANT(fresh);
  Note(block);
  return block;
}

void BlockTable::Erase(Block& block) {
  BERTH_INVARIANT(block.imports.empty());
  BERTH_INVARIANT(block.name.empty());
  Note(block);
  if (block.owned()) Count(block.tenant, -1);
  if (block.published) {
    --published_;
  } else if (block.owner) {
    by_owner_.erase({block.owner, block.generation});
  } else {
    --unowned_;
  }
  for (const SessionId session : block.granted_sessions) by_grantee_.erase({session, block.generation});
  by_id_.erase(block.id);
  rows_.erase(block.generation);
}

void BlockTable::Count(const Tenant& tenant, int64_t change) {
  const auto at = by_tenant_.try_emplace(tenant).first;
  at->second += change;
  if (at->second == 0) by_tenant_.erase(at);
}

uint64_t BlockTable::CountOf(const Tenant& tenant) const {
  const auto found = by_tenant_.find(tenant);
  return found == by_tenant_.end() ? 0 : found->second;
}

const Block* BlockTable::Find(BlockId id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second;
}

Block* BlockTable::Find(BlockId id) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return nullptr;
  Note(*found->second);
  return found->second;
}

void BlockTable::SetOwner(Block& block, SessionId owner, const Tenant& tenant, const std::string& label) {
  BERTH_INVARIANT(!block.owner && owner);
  --unowned_;
  block.owner = owner;
  block.tenant = tenant;
  block.label = label;
  Count(tenant, 1);
  by_owner_.emplace(owner, block.generation);
}

void BlockTable::Publish(Block& block, const std::string& name) {
  const bool fresh = by_name_.emplace(std::pair(block.tenant, name), &block).second;
  BERTH_INVARIANT(fresh && block.owner && !name.empty());
  by_owner_.erase({block.owner, block.generation});
  block.owner = SessionId();
  block.published = true;
  block.name = name;
  ++published_;
}

void BlockTable::GiveBack(Block& block, SessionId owner) {
  BERTH_INVARIANT(block.published);
  EraseName(block);
  --published_;
  block.published = false;
  block.owner = owner;
  by_owner_.emplace(owner, block.generation);
}

void BlockTable::AddGrant(Block& block, SessionId session) {
  block.granted_sessions.insert(session);
  by_grantee_.emplace(session, block.generation);
}

void BlockTable::EndGrantsTo(SessionId session, const Tenant& tenant) {
  for (auto it = by_grantee_.lower_bound({session, 0}); it != by_grantee_.end() && it->first == session;) {
    Block& block = rows_.at(it->second);
    if (block.tenant != tenant) {
      ++it;
      continue;
    }
    Note(block);
    block.granted_sessions.erase(session);
    it = by_grantee_.erase(it);
  }
}

void BlockTable::EraseName(Block& block) {
  by_name_.erase({block.tenant, block.name});
  block.name.clear();
}

Block* BlockTable::FindByName(const Tenant& tenant, const std::string& name) {
  const auto found = by_name_.find({tenant, name});
  if (found == by_name_.end()) return nullptr;
  Note(*found->second);
  return found->second;
}

uint64_t BlockTable::CountNamesOf(const Tenant& tenant) const {
  uint64_t count = 0;
  for (auto it = by_name_.lower_bound({tenant, ""}); it != by_name_.end() && it->first.first == tenant;
       ++it) {
    ++count;
  }
  return count;
}

std::vector<Block*> BlockTable::OwnedBy(SessionId owner) {
  std::vector<Block*> blocks;
  for (auto it = by_owner_.lower_bound({owner, 0}); it != by_owner_.end() && it->first == owner; ++it) {
    blocks.push_back(&rows_.at(it->second));
    Note(*blocks.back());
  }
  return blocks;
}

Bytes BlockTable::LiveBytesOf(SessionId owner) const {
  uint64_t bytes = 0;
  for (auto it = by_owner_.lower_bound({owner, 0}); it != by_owner_.end() && it->first == owner; ++it) {
    const Block& block = rows_.at(it->second);
    if (block.phase == BlockPhase::kLive) bytes += block.bytes.count();
  }
  return Bytes(bytes);
}

Import& BlockTable::AddImport(Block& block, Import import) {
  import.id = ImportId(++last_.import);
  journal_.Touch(RowKind::kMemoryCounters);
  Note(block, import.id);
  by_import_.emplace(import.id, &block);
  by_channel_[import.channel].insert(import.id);
  return block.imports.emplace(import.id, std::move(import)).first->second;
}

void BlockTable::EraseImport(Block& block, ImportId import) {
  const auto found = block.imports.find(import);
  BERTH_INVARIANT(found != block.imports.end());
  Note(block, import);
  const auto of_channel = by_channel_.find(found->second.channel);
  of_channel->second.erase(import);
  if (of_channel->second.empty()) by_channel_.erase(of_channel);
  by_import_.erase(import);
  block.imports.erase(found);
}

const Block* BlockTable::FindByImport(ImportId import) const {
  const auto found = by_import_.find(import);
  return found == by_import_.end() ? nullptr : found->second;
}

Block* BlockTable::FindByImport(ImportId import) {
  const auto found = by_import_.find(import);
  if (found == by_import_.end()) return nullptr;
  Note(*found->second);
  return found->second;
}

bool BlockTable::MarkRecalled(Block& block, ImportId import) {
  Note(block, import);
  return !std::exchange(block.imports.at(import).recalled, true);
}

std::vector<ImportId> BlockTable::ImportsOf(ChannelId channel) const {
  const auto found = by_channel_.find(channel);
  if (found == by_channel_.end()) return {};
  return {found->second.begin(), found->second.end()};
}

uint64_t BlockTable::CountImportsOf(ChannelId channel) const {
  const auto found = by_channel_.find(channel);
  return found == by_channel_.end() ? 0 : found->second.size();
}

void BlockTable::MoveImports(ChannelId from, ChannelId to) {
  const auto found = by_channel_.find(from);
  if (found == by_channel_.end()) return;
  const std::set<ImportId> moved = std::move(found->second);
  by_channel_.erase(found);
  for (const ImportId import : moved) {
    Block& block = *by_import_.at(import);
    block.imports.at(import).channel = to;
    Note(block, import);
  }
  by_channel_[to].insert(moved.begin(), moved.end());
}

std::vector<const Block*> BlockTable::OfDevice(uint32_t device) const {
  std::vector<const Block*> blocks;
  for (const auto& [generation, block] : rows_) {
    if (block.device == device) blocks.push_back(&block);
  }
  return blocks;
}

Block* BlockTable::Restore(Block block) {
  const bool named = !block.name.empty();
  if (block.generation == 0 || block.generation > last_.generation || rows_.contains(block.generation) ||
      by_id_.contains(block.id) || block.phase >= BlockPhase::kGone || (block.published && block.owner) ||
      (named && (!block.published || by_name_.contains({block.tenant, block.name})))) {
    return nullptr;
  }
  Block& row = rows_.emplace(block.generation, std::move(block)).first->second;
  by_id_.emplace(row.id, &row);
  if (named) by_name_.emplace(std::pair(row.tenant, row.name), &row);
  for (const SessionId session : row.granted_sessions) by_grantee_.emplace(session, row.generation);
  if (row.owned()) Count(row.tenant, 1);
  if (row.published) {
    ++published_;
  } else if (row.owner) {
    by_owner_.emplace(row.owner, row.generation);
  } else {
    ++unowned_;
  }
  return &row;
}

const Import* BlockTable::Restore(BlockId block, Import import) {
  const auto found = by_id_.find(block);
  const ImportId id = import.id;
  if (found == by_id_.end() || id.value() > last_.import) return nullptr;
  if (!by_import_.emplace(id, found->second).second) return nullptr;
  by_channel_[import.channel].insert(id);
  return &found->second->imports.emplace(id, std::move(import)).first->second;
}

void BlockTable::ForEach(absl::FunctionRef<void(const Block&)> visit) const {
  for (const auto& [generation, block] : rows_) visit(block);
}

void BlockTable::ForEachAfter(uint64_t generation, absl::FunctionRef<bool(const Block&)> visit) const {
  for (auto it = rows_.upper_bound(generation); it != rows_.end() && visit(it->second); ++it) continue;
}

absl::Status BlockTable::CheckBooks() const {
  uint64_t unowned = 0;
  uint64_t published = 0;
  uint64_t names = 0;
  uint64_t imports = 0;
  absl::flat_hash_map<Tenant, uint64_t> by_tenant;
  for (const auto& [generation, block] : rows_) {
    if (block.owned()) ++by_tenant[block.tenant];
    const auto by_id = by_id_.find(block.id);
    if (by_id == by_id_.end() || by_id->second != &block)
      return absl::InternalError("a block is not found by its id");
    if (block.phase == BlockPhase::kGone) return absl::InternalError("a block that is gone has a row");
    if (!block.name.empty()) {
      const auto by_name = by_name_.find({block.tenant, block.name});
      if (by_name == by_name_.end() || by_name->second != &block) {
        return absl::InternalError("a block is not found by its name");
      }
      if (block.phase != BlockPhase::kLive) return absl::InternalError("a block has a name that is not live");
      ++names;
    }
    if (block.published) {
      if (block.owner) return absl::InternalError("a published block is a session's");
      ++published;
    } else if (!block.owner) {
      ++unowned;
    } else if (!by_owner_.contains({block.owner, generation})) {
      return absl::InternalError("a block is not found by its owner");
    }
    imports += block.imports.size();
    for (const auto& [id, import] : block.imports) {
      if (block.phase != BlockPhase::kLive && block.phase != BlockPhase::kQuarantined) {
        return absl::InternalError("a block is imported that is neither live nor quarantined");
      }
      const auto by_import = by_import_.find(id);
      const auto by_channel = by_channel_.find(import.channel);
      if (by_import == by_import_.end() || by_import->second != &block || by_channel == by_channel_.end() ||
          !by_channel->second.contains(id)) {
        return absl::InternalError("an import is not found");
      }
    }
    if (block.phase == BlockPhase::kQuarantined && block.imports.empty()) {
      return absl::InternalError("a block is quarantined for nobody");
    }
  }
  uint64_t of_channels = 0;
  for (const auto& [channel, of_channel] : by_channel_) {
    if (of_channel.empty()) return absl::InternalError("a channel is listed for its imports and has none");
    of_channels += of_channel.size();
  }
  if (by_tenant != by_tenant_) return absl::InternalError("tenants' blocks are miscounted");
  if (published != published_ || names != by_name_.size())
    return absl::InternalError("published blocks are miscounted");
  if (unowned != unowned_ || by_id_.size() != rows_.size() ||
      by_owner_.size() != rows_.size() - unowned - published || by_import_.size() != imports ||
      of_channels != imports) {
    return absl::InternalError("an index of the blocks holds more than the blocks");
  }
  return absl::OkStatus();
}

}  // namespace berth::core
