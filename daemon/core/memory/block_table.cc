#include "daemon/core/memory/block_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/memory/warm_block_cache.h"
#include "daemon/core/types/invariant.h"

namespace berth::core {

Block& BlockTable::Add(BlockId id, uint32_t device, Bytes bytes, BlockPhase phase) {
  const uint64_t generation = ++last_.generation;
  journal_.Touch(RecordKind::kMemoryCounters);
  Block& block = entries_[generation];
  block.id = id;
  block.generation = generation;
  block.device = device;
  block.bytes = bytes;
  block.phase = phase;
  ++unowned_;
  const bool fresh = by_id_.emplace(id, &block).second;
  BERTH_INVARIANT(fresh);
  Mark(block);
  return block;
}

void BlockTable::Erase(Block& block) {
  BERTH_INVARIANT(block.imports.empty());
  BERTH_INVARIANT(block.name.empty());
  Mark(block);
  if (block.owned()) CountOut(block);
  grants_.Give({.user = UserOf(block.tenant)}, block.grants());
  if (block.published) {
    --published_;
  } else if (block.owner) {
    by_owner_.erase({block.owner, block.generation});
  } else {
    --unowned_;
  }
  for (const SessionId session : block.granted_sessions) by_grantee_.erase({session, block.generation});
  by_id_.erase(block.id);
  entries_.erase(block.generation);
}

void BlockTable::SetPhase(Block& block, BlockPhase phase) {
  if (IsCreate(block)) GiveCreate(block);
  block.phase = phase;
  if (IsCreate(block)) TakeCreate(block, &creates_);
}

void BlockTable::CountIn(const Block& block) {
  Count(block.tenant, 1, &by_account_);
  places_.Take(block.claimant());
  if (IsCreate(block)) TakeCreate(block, &creates_);
}

void BlockTable::CountOut(const Block& block) {
  Count(block.tenant, -1, &by_account_);
  places_.Give(block.claimant());
  if (IsCreate(block)) GiveCreate(block);
}

SharedCount BlockTable::NewCreates(uint32_t device, WorkerKind worker_kind) const {
  return SharedCount("creates_per_worker", limits_.creates, limits_.operator_creates,
                     absl::StrCat("device ", device, worker_kind == WorkerKind::kContext ? ": context worker" : ""),
                     "retry once the worker has made blocks, or use another device");
}

void BlockTable::TakeCreate(const Block& block, Creates* creates) const {
  const std::pair worker(block.device, block.worker_kind());
  auto found = creates->find(worker);
  if (found == creates->end()) found = creates->emplace(worker, NewCreates(worker.first, worker.second)).first;
  found->second.Take(block.claimant());
}

void BlockTable::GiveCreate(const Block& block) {
  const auto found = creates_.find({block.device, block.worker_kind()});
  BERTH_INVARIANT(found != creates_.end());
  found->second.Give(block.claimant());
}

SharedCount BlockTable::CreatesOf(uint32_t device, WorkerKind worker_kind) const {
  const auto found = creates_.find({device, worker_kind});
  if (found == creates_.end()) return NewCreates(device, worker_kind);
  return found->second;
}

void BlockTable::Count(const Account& account, int64_t change, Counts* counts) {
  const auto at = counts->try_emplace(account).first;
  at->second += change;
  if (at->second == 0) counts->erase(at);
}

uint64_t BlockTable::CountIn(const Counts& counts, const Account& account) {
  const auto found = counts.find(account);
  return found == counts.end() ? 0 : found->second;
}

const Block* BlockTable::Find(BlockId id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second;
}

Block* BlockTable::Find(BlockId id) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return nullptr;
  Mark(*found->second);
  return found->second;
}

void BlockTable::SetOwner(Block& block, SessionId owner, const Tenant& tenant, const std::string& label) {
  BERTH_INVARIANT(!block.owner && owner);
  --unowned_;
  block.owner = owner;
  block.tenant = tenant;
  block.label = label;
  CountIn(block);
  by_owner_.emplace(owner, block.generation);
}

void BlockTable::Publish(Block& block, const std::string& name) {
  const bool fresh = by_name_.emplace(std::pair(block.tenant, name), &block).second;
  BERTH_INVARIANT(fresh && block.owner && !name.empty());
  Count(block.tenant, 1, &names_by_account_);
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
  grants_.Take({.user = UserOf(block.tenant)});
  by_grantee_.emplace(session, block.generation);
}

void BlockTable::AddGrant(Block& block, const Tenant& tenant) {
  block.granted_tenants.insert(tenant);
  grants_.Take({.user = UserOf(block.tenant)});
}

void BlockTable::EndGrantsTo(SessionId session, const Tenant& tenant) {
  for (auto it = by_grantee_.lower_bound({session, 0}); it != by_grantee_.end() && it->first == session;) {
    Block& block = entries_.at(it->second);
    if (block.tenant != tenant) {
      ++it;
      continue;
    }
    Mark(block);
    block.granted_sessions.erase(session);
    grants_.Give({.user = UserOf(block.tenant)});
    it = by_grantee_.erase(it);
  }
}

void BlockTable::EraseName(Block& block) {
  if (by_name_.erase({block.tenant, block.name}) > 0) Count(block.tenant, -1, &names_by_account_);
  block.name.clear();
}

Block* BlockTable::FindByName(const Tenant& tenant, const std::string& name) {
  const auto found = by_name_.find({tenant, name});
  if (found == by_name_.end()) return nullptr;
  Mark(*found->second);
  return found->second;
}

std::vector<Block*> BlockTable::OwnedBy(SessionId owner) {
  std::vector<Block*> blocks;
  for (auto it = by_owner_.lower_bound({owner, 0}); it != by_owner_.end() && it->first == owner; ++it) {
    blocks.push_back(&entries_.at(it->second));
    Mark(*blocks.back());
  }
  return blocks;
}

Bytes BlockTable::LiveBytesOf(SessionId owner) const {
  uint64_t bytes = 0;
  for (auto it = by_owner_.lower_bound({owner, 0}); it != by_owner_.end() && it->first == owner; ++it) {
    const Block& block = entries_.at(it->second);
    if (block.phase == BlockPhase::kLive) bytes += block.bytes.count();
  }
  return Bytes(bytes);
}

Import& BlockTable::AddImport(Block& block, Import import) {
  import.id = ImportId(++last_.import);
  journal_.Touch(RecordKind::kMemoryCounters);
  Mark(block, import.id);
  by_import_.emplace(import.id, &block);
  by_channel_[import.channel].insert(import.id);
  imports_.Take(import.claimant());
  return block.imports.emplace(import.id, std::move(import)).first->second;
}

void BlockTable::EraseImport(Block& block, ImportId import) {
  const auto found = block.imports.find(import);
  BERTH_INVARIANT(found != block.imports.end());
  Mark(block, import);
  const auto of_channel = by_channel_.find(found->second.channel);
  of_channel->second.erase(import);
  if (of_channel->second.empty()) by_channel_.erase(of_channel);
  by_import_.erase(import);
  imports_.Give(found->second.claimant());
  block.imports.erase(found);
}

const Block* BlockTable::FindByImport(ImportId import) const {
  const auto found = by_import_.find(import);
  return found == by_import_.end() ? nullptr : found->second;
}

Block* BlockTable::FindByImport(ImportId import) {
  const auto found = by_import_.find(import);
  if (found == by_import_.end()) return nullptr;
  Mark(*found->second);
  return found->second;
}

bool BlockTable::MarkRecalled(Block& block, ImportId import) {
  Mark(block, import);
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
    Mark(block, import);
  }
  by_channel_[to].insert(moved.begin(), moved.end());
}

std::vector<const Block*> BlockTable::OfDevice(uint32_t device) const {
  std::vector<const Block*> blocks;
  for (const auto& [generation, block] : entries_) {
    if (block.device == device) blocks.push_back(&block);
  }
  return blocks;
}

Block* BlockTable::Restore(Block block) {
  const bool named = !block.name.empty();
  if (block.generation == 0 || block.generation > last_.generation || entries_.contains(block.generation) ||
      by_id_.contains(block.id) || block.phase >= BlockPhase::kGone || (block.published && block.owner) ||
      (named && (!block.published || by_name_.contains({block.tenant, block.name})))) {
    return nullptr;
  }
  Block& entry = entries_.emplace(block.generation, std::move(block)).first->second;
  by_id_.emplace(entry.id, &entry);
  if (named) {
    by_name_.emplace(std::pair(entry.tenant, entry.name), &entry);
    Count(entry.tenant, 1, &names_by_account_);
  }
  for (const SessionId session : entry.granted_sessions) by_grantee_.emplace(session, entry.generation);
  if (entry.owned()) CountIn(entry);
  grants_.Take({.user = UserOf(entry.tenant)}, entry.grants());
  if (entry.published) {
    ++published_;
  } else if (entry.owner) {
    by_owner_.emplace(entry.owner, entry.generation);
  } else {
    ++unowned_;
  }
  return &entry;
}

const Import* BlockTable::Restore(BlockId block, Import import) {
  const auto found = by_id_.find(block);
  const ImportId id = import.id;
  if (found == by_id_.end() || id.value() > last_.import) return nullptr;
  if (!by_import_.emplace(id, found->second).second) return nullptr;
  by_channel_[import.channel].insert(id);
  imports_.Take(import.claimant());
  return &found->second->imports.emplace(id, std::move(import)).first->second;
}

void BlockTable::ForEach(absl::FunctionRef<void(const Block&)> visit) const {
  for (const auto& [generation, block] : entries_) visit(block);
}

void BlockTable::ForEachAfter(uint64_t generation, absl::FunctionRef<bool(const Block&)> visit) const {
  for (auto it = entries_.upper_bound(generation); it != entries_.end() && visit(it->second); ++it) continue;
}

absl::Status BlockTable::CheckInvariants() const {
  uint64_t unowned = 0;
  uint64_t published = 0;
  uint64_t names = 0;
  uint64_t imports = 0;
  Counts by_account;
  Counts names_by_account;
  SharedCount places("blocks", SharedCount::kUnlimited, SharedCount::kUnlimited);
  SharedCount imports_of_users = places, grants_of_users = places;
  Creates creates;
  for (const auto& [generation, block] : entries_) {
    if (block.owned()) {
      ++by_account[block.tenant];
      places.Take(block.claimant());
    }
    if (IsCreate(block)) TakeCreate(block, &creates);
    const auto by_id = by_id_.find(block.id);
    if (by_id == by_id_.end() || by_id->second != &block)
      return absl::InternalError("a block is not found by its id");
    if (block.phase == BlockPhase::kGone) return absl::InternalError("an absent block has a record");
    if (!block.name.empty()) {
      const auto by_name = by_name_.find({block.tenant, block.name});
      if (by_name == by_name_.end() || by_name->second != &block) {
        return absl::InternalError("a block is not found by its name");
      }
      if (block.phase != BlockPhase::kLive) return absl::InternalError("a block that is not live has a name");
      ++names;
      ++names_by_account[block.tenant];
    }
    if (block.published) {
      if (block.owner) return absl::InternalError("a published block belongs to a session");
      ++published;
    } else if (!block.owner) {
      ++unowned;
    } else if (!by_owner_.contains({block.owner, generation})) {
      return absl::InternalError("a block is not found by its owner");
    }
    imports += block.imports.size();
    grants_of_users.Take({.user = UserOf(block.tenant)}, block.grants());
    for (const auto& [id, import] : block.imports) {
      imports_of_users.Take(import.claimant());
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
      return absl::InternalError("a quarantined block has no process to wait for");
    }
  }
  uint64_t of_channels = 0;
  for (const auto& [channel, of_channel] : by_channel_) {
    if (of_channel.empty()) return absl::InternalError("a channel without imports is in the index of imports");
    of_channels += of_channel.size();
  }
  if (!(imports_of_users == imports_) || !(grants_of_users == grants_)) {
    return absl::InternalError("users' imports or grants are miscounted");
  }
  if (by_account != by_account_ || names_by_account != names_by_account_ || !(places == places_)) {
    return absl::InternalError("accounts' blocks are miscounted");
  }
  Creates ours = creates_;
  std::erase_if(ours, [&](const auto& of) { return of.second == NewCreates(of.first.first, of.first.second); });
  if (!(creates == ours)) return absl::InternalError("the blocks that workers make are miscounted");
  if (published != published_ || names != by_name_.size())
    return absl::InternalError("published blocks are miscounted");
  if (unowned != unowned_ || by_id_.size() != entries_.size() ||
      by_owner_.size() != entries_.size() - unowned - published || by_import_.size() != imports ||
      of_channels != imports) {
    return absl::InternalError("an index of the blocks holds more than the blocks");
  }
  return absl::OkStatus();
}

// ---- warm_block_cache.h --------------------------------------------------------------------------------------

std::vector<BlockId> WarmBlockCache::RecordAsked(Bytes bytes) {
  if (const auto found = std::find(sizes_.begin(), sizes_.end(), bytes); found != sizes_.end()) {
    sizes_.erase(found);
  }
  sizes_.push_front(bytes);
  if (sizes_.size() <= max_sizes_) return {};
  const Bytes dropped = sizes_.back();
  sizes_.pop_back();
  return OfSize(dropped);
}

void WarmBlockCache::Put(Bytes bytes, uint64_t age, BlockId block, bool made) {
  places_.emplace(bytes.count(), !made, age, block);
}

void WarmBlockCache::MarkMade(Bytes bytes, uint64_t age, BlockId block) {
  places_.erase({bytes.count(), true, age, block});
  places_.emplace(bytes.count(), false, age, block);
}

void WarmBlockCache::Remove(Bytes bytes, uint64_t age, BlockId block) {
  places_.erase({bytes.count(), true, age, block});
  places_.erase({bytes.count(), false, age, block});
}

std::optional<BlockId> WarmBlockCache::Find(Bytes bytes) const {
  const auto found = places_.lower_bound({bytes.count(), false, 0, BlockId()});
  if (found == places_.end() || std::get<0>(*found) != bytes.count()) return std::nullopt;
  return std::get<BlockId>(*found);
}

std::vector<BlockId> WarmBlockCache::OfSize(Bytes bytes) const {
  std::vector<BlockId> blocks;
  for (auto it = places_.lower_bound({bytes.count(), false, 0, BlockId()});
       it != places_.end() && std::get<0>(*it) == bytes.count(); ++it) {
    blocks.push_back(std::get<BlockId>(*it));
  }
  return blocks;
}

uint64_t WarmBlockCache::Count(Bytes bytes) const { return OfSize(bytes).size(); }

std::vector<BlockId> WarmBlockCache::All() const {
  std::vector<BlockId> blocks;
  // Blocks of sizes that are no longer cached come first.
  for (const Place& place : places_) {
    const Bytes bytes(std::get<0>(place));
    const bool stays = std::find(sizes_.begin(), sizes_.end(), bytes) != sizes_.end();
    if (!stays) blocks.push_back(std::get<BlockId>(place));
  }
  for (auto size = sizes_.rbegin(); size != sizes_.rend(); ++size) {
    for (const BlockId block : OfSize(*size)) blocks.push_back(block);
  }
  return blocks;
}

}  // namespace berth::core
