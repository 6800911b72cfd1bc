// BlockTable: every block there is with its owner, its grants and its imports, and the ways to find them. It
// keeps rows and indexes; what may happen to a block is block_phase.h's business, what it costs
// byte_budget.h's. Thread-compatible.

#ifndef DAEMON_CORE_BLOCK_TABLE_H_
#define DAEMON_CORE_BLOCK_TABLE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/bytes.h"
#include "common/ids.h"
#include "daemon/core/block_phase.h"
#include "daemon/core/block_types.h"
#include "daemon/core/caller.h"
#include "daemon/core/journal.h"
#include "daemon/core/request_memory.h"

namespace berth::core {

struct Import {
  ImportId id;
  ChannelId channel;
  SessionId session;
  Tenant tenant;
  ProcessInfo process;
  ReadOnly read_only = ReadOnly::kNo;
  absl::Time since;
  bool recalled = false;
};
template <typename Archive>
void Fields(Archive& archive, Import& value) {
  archive(value.channel, value.session, value.tenant, value.process, value.read_only, value.since, value.recalled);
}

struct Block {
  BlockId id;
  // Node-wide, rising, never reused: the block generation.
  uint64_t generation = 0;
  uint32_t device = 0;
  // Of what its memory lives in, when the worker was asked for it: the memory is of no later one.
  uint64_t memory_generation = 0;
  Bytes bytes;
  ExportKind export_kind = ExportKind::kFd;
  // Of a CUDA_IPC block that was made. Never shown.
  IpcHandle ipc_handle;
  BlockPhase phase = BlockPhase::kWarming;
  // In the making or retired: the worker has been asked and has not answered.
  bool asked = false;
  // In the making: an earlier broker may have had it made. Its worker knows, once it has answered.
  bool asked_earlier = false;
  // Retired, and the worker could not release it; what it said, until the driver has taken it.
  bool stuck = false;
  std::string release_error;
  // Retired, and its uses have not ended.
  bool busy = false;
  // Reserved: its making was tried again after a reap already.
  bool retried = false;
  // Reserved: the request it is made for.
  RequestId request;
  // Its bytes were a reservation's; they are again if its request comes to nothing.
  ReservationId drawn_from;
  // Who is charged for it beside its device.
  SessionId charged_session;
  std::vector<Tenant> charged_tenants;
  // Published: nobody's session's but its tenant's, under `name` until it is freed.
  bool published = false;
  std::string name;
  // Who it was made for; 0 for nobody yet, or when it is its tenant's. Stays after the block was freed, when nobody is
  // charged any more.
  SessionId owner;
  Tenant tenant;
  std::string label;
  absl::Time live_since;
  std::set<SessionId> granted_sessions;
  std::set<Tenant> granted_tenants;
  std::map<ImportId, Import> imports;
  // Its fences are the core's to track, and not the only importing process's: from the second process on, for good.
  bool shared = false;

  // It is or was somebody's.
  bool owned() const { return static_cast<bool>(owner) || published; }
  Lane lane() const { return LaneOf(export_kind); }
  bool freed() const { return phase == BlockPhase::kQuarantined || phase == BlockPhase::kRetired; }
};
// All but its id, its imports, and what a worker was asked: that is asked again.
template <typename Archive>
void Fields(Archive& archive, Block& value) {
  archive(value.generation, value.device, value.memory_generation, value.bytes, value.export_kind, value.ipc_handle,
          value.phase, value.stuck, value.release_error, value.busy, value.request, value.drawn_from,
          value.charged_session, value.charged_tenants, value.published, value.name, value.owner, value.tenant,
          value.label, value.live_since, value.granted_sessions, value.granted_tenants, value.shared);
}

class BlockTable {
 public:
  // What it gave out last.
  struct Counters {
    uint64_t generation = 0;
    uint64_t import = 0;
  };

  // Notes blocks, imports and counters.
  explicit BlockTable(Journal* journal) : journal_(*journal) {}

  // Rows stay where they are until erased. A block is noted when it is handed out to be changed, but for its imports:
  // those only the table changes.
  Block& Add(BlockId id, uint32_t device, Bytes bytes, BlockPhase phase);
  void Erase(Block& block);
  // Returns null for an unknown id.
  Block* Find(BlockId id);
  const Block* Find(BlockId id) const;

  // Requires: nobody's so far.
  void SetOwner(Block& block, SessionId owner, const Tenant& tenant, const std::string& label);
  // Makes a session's block its tenant's, under a name that its tenant does not use; and the other way round.
  void Publish(Block& block, const std::string& name);
  void GiveBack(Block& block, SessionId owner);
  // The name names nothing any more; the block stays its tenant's.
  void EraseName(Block& block);
  // Returns null for an unknown name.
  Block* FindByName(const Tenant& tenant, const std::string& name);
  uint64_t CountNamesOf(const Tenant& tenant) const;

  // Oldest first.
  std::vector<Block*> OwnedBy(SessionId owner);
  Bytes LiveBytesOf(SessionId owner) const;

  // Lets a session import the block, whether there is such a session or not.
  void AddGrant(Block& block, SessionId session);
  // The session, of `tenant`, is over: blocks of its own tenant's are granted to it no more. Those of others' stay so:
  // they shall not learn of it.
  void EndGrantsTo(SessionId session, const Tenant& tenant);

  // Gives `import` an id.
  Import& AddImport(Block& block, Import import);
  void EraseImport(Block& block, ImportId import);
  // Returns null for an unknown id.
  Block* FindByImport(ImportId import);
  const Block* FindByImport(ImportId import) const;
  // Its process is asked to let go. Returns whether it was not before. Requires: it is the block's.
  bool MarkRecalled(Block& block, ImportId import);
  // Rising.
  std::vector<ImportId> ImportsOf(ChannelId channel) const;
  uint64_t CountImportsOf(ChannelId channel) const;
  // The imports of `from` are `to`'s from now on.
  void MoveImports(ChannelId from, ChannelId to);

  // Oldest first.
  std::vector<const Block*> OfDevice(uint32_t device) const;
  void ForEach(absl::FunctionRef<void(const Block&)> visit) const;
  // Those of a later generation than `generation`, oldest first, until `visit` returns false.
  void ForEachAfter(uint64_t generation, absl::FunctionRef<bool(const Block&)> visit) const;
  // Blocks that are somebody's, or were.
  uint64_t owned_count() const { return rows_.size() - unowned_; }
  // Of these, the tenant's.
  uint64_t CountOf(const Tenant& tenant) const;
  uint64_t size() const { return rows_.size(); }
  // OK, or what is broken.
  absl::Status CheckBooks() const;

  // Takes in what an earlier table had: counters, blocks without their imports, and these. Returns null for what does
  // not fit the rest.
  const Counters& counters() const { return last_; }
  void Restore(const Counters& counters) { last_ = counters; }
  Block* Restore(Block block);
  const Import* Restore(BlockId block, Import import);

 private:
  void Count(const Tenant& tenant, int64_t change);
  void Note(const Block& block) { journal_.Touch(RowKind::kBlock, block.id.value()); }
  void Note(const Block& block, ImportId import) {
    journal_.Touch(RowKind::kImport, block.id.value(), import.value());
  }

  Journal& journal_;
  Counters last_;
  uint64_t unowned_ = 0;
  uint64_t published_ = 0;
  // By generation, so oldest first.
  std::map<uint64_t, Block> rows_;
  absl::flat_hash_map<BlockId, Block*> by_id_;
  std::set<std::pair<SessionId, uint64_t>> by_owner_;
  // By whom they are granted to.
  std::set<std::pair<SessionId, uint64_t>> by_grantee_;
  // How many are somebody's, or were; of tenants that have any.
  absl::flat_hash_map<Tenant, uint64_t> by_tenant_;
  std::map<std::pair<Tenant, std::string>, Block*> by_name_;
  absl::flat_hash_map<ImportId, Block*> by_import_;
  // Of channels that have any.
  absl::flat_hash_map<ChannelId, std::set<ImportId>> by_channel_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_BLOCK_TABLE_H_
