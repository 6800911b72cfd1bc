// BlockTable: every block with its owner, grants and imports, and the indexes to find them. The table holds records and
// indexes only: block_phase.h has the transitions, byte_budget.h the accounting. Thread-compatible.

#ifndef DAEMON_CORE_MEMORY_BLOCK_TABLE_H_
#define DAEMON_CORE_MEMORY_BLOCK_TABLE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <berth/bytes.h>
#include <berth/ids.h>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/base/worker_kind.h"
#include "daemon/core/requests/request_memory.h"
#include "daemon/core/types/block_phase.h"
#include "daemon/core/types/block_types.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/journal.h"
#include "daemon/core/types/shared_count.h"

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
  // Belongs to an operator's session. Not persisted.
  bool of_operator = false;

  Claimant claimant() const { return {.user = UserOf(tenant), .of_operator = of_operator}; }
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
  // Generation of its worker's memory when the worker was asked for the block; the block's is not later.
  uint64_t memory_generation = 0;
  Bytes bytes;
  ExportKind export_kind = ExportKind::kFd;
  // Handle of a CUDA_IPC block that was made. Never shown.
  IpcHandle ipc_handle;
  BlockPhase phase = BlockPhase::kWarming;
  // Being created or retired: the worker has the command and has not answered.
  bool asked = false;
  // The number of that command among all workers' commands; 0 if no worker executes it. A worker executes its commands
  // in their order.
  uint64_t asked_as = 0;
  // Being created or retired: how many workers have ended while they executed that command.
  int ended_workers = 0;
  // Being created: an earlier broker may have had the block created; only an answer of the worker settles that.
  bool asked_earlier = false;
  // Retired, and the worker failed to release it; `release_error` is its error. Reset once the driver takes the memory.
  bool stuck = false;
  std::string release_error;
  // Freed because the daemon lost its memory.
  bool lost = false;
  // Retired, and its uses have not ended.
  bool busy = false;
  // Reserved: its creation was already retried after pending releases.
  bool retried = false;
  // Reserved: the request that the block is made for.
  RequestId request;
  // The reservation that its bytes were drawn from; they return to it if the request fails.
  ReservationId drawn_from;
  // Accounts charged for the block, in addition to the device.
  SessionId charged_session;
  std::vector<Tenant> charged_tenants;
  // Published: owned by its tenant instead of a session, under `name` until it is freed.
  bool published = false;
  std::string name;
  // Owning session; 0 without an owner so far, or when the tenant owns the block. Unchanged after the block was freed,
  // when no owner is charged any more.
  SessionId owner;
  Tenant tenant;
  // Made for an operator's session. Not persisted: a restarted broker counts the block as its user's.
  bool of_operator = false;
  std::string label;
  absl::Time live_since;
  std::set<SessionId> granted_sessions;
  std::set<Tenant> granted_tenants;
  std::map<ImportId, Import> imports;
  // The core tracks its fences, rather than its only importing process: from the second importing process on, for good.
  bool shared = false;

  // Whether it has or had an owner.
  bool owned() const { return static_cast<bool>(owner) || published; }
  WorkerKind worker_kind() const { return WorkerKindOf(export_kind); }
  Claimant claimant() const { return {.user = UserOf(tenant), .of_operator = of_operator}; }
  uint64_t grants() const { return granted_sessions.size() + granted_tenants.size(); }
  bool freed() const { return phase == BlockPhase::kQuarantined || phase == BlockPhase::kRetired; }
};
// All fields but the id, the imports, and pending worker commands, which are repeated after a restart.
template <typename Archive>
void Fields(Archive& archive, Block& value) {
  archive(value.generation, value.device, value.memory_generation, value.bytes, value.export_kind, value.ipc_handle,
          value.phase, value.stuck, value.release_error, value.busy, value.request, value.drawn_from,
          value.charged_session, value.charged_tenants, value.published, value.name, value.owner, value.tenant,
          value.label, value.live_since, value.granted_sessions, value.granted_tenants, value.shared);
  archive.Since(3, value.lost);
}

class BlockTable {
 public:
  // The last numbers assigned.
  struct Counters {
    uint64_t generation = 0;
    uint64_t import = 0;
  };

  // Limits on all users together, and on operators in addition.
  struct Limits {
    uint64_t blocks = SharedCount::kUnlimited;
    uint64_t imports = SharedCount::kUnlimited;
    uint64_t grants = SharedCount::kUnlimited;
    uint64_t operator_blocks = SharedCount::kUnlimited;
    uint64_t operator_imports = SharedCount::kUnlimited;
    // Limits of each worker.
    uint64_t creates = SharedCount::kUnlimited;
    uint64_t operator_creates = SharedCount::kUnlimited;
  };

  // Records changes of blocks, imports and counters in `journal`.
  BlockTable(Journal* journal, const Limits& limits)
      : journal_(*journal),
        limits_(limits),
        places_("blocks", limits.blocks, limits.operator_blocks),
        imports_("imports", limits.imports, limits.operator_imports),
        grants_("grants", limits.grants, 0) {}
  explicit BlockTable(Journal* journal) : BlockTable(journal, Limits()) {}

  // Blocks have stable addresses until erased. A non-const lookup marks the block as changed in the journal. Imports
  // are excepted: only the table changes them.
  Block& Add(BlockId id, uint32_t device, Bytes bytes, BlockPhase phase);
  void Erase(Block& block);
  void SetPhase(Block& block, BlockPhase phase);
  // Returns null for an unknown id.
  Block* Find(BlockId id);
  const Block* Find(BlockId id) const;

  // Requires: the block has no owner so far.
  void SetOwner(Block& block, SessionId owner, const Tenant& tenant, const std::string& label);
  // Publish() makes a session's block its tenant's, under a name unused in the tenant; GiveBack() reverts that.
  void Publish(Block& block, const std::string& name);
  void GiveBack(Block& block, SessionId owner);
  // Removes the name; the block stays its tenant's.
  void EraseName(Block& block);
  // Returns null for an unknown name.
  Block* FindByName(const Tenant& tenant, const std::string& name);
  uint64_t CountNamesOf(const Account& account) const { return CountIn(names_by_account_, account); }

  // Oldest first.
  std::vector<Block*> OwnedBy(SessionId owner);
  Bytes LiveBytesOf(SessionId owner) const;

  // Lets a session, or every session of a tenant, import the block. The session need not exist.
  void AddGrant(Block& block, SessionId session);
  void AddGrant(Block& block, const Tenant& tenant);
  // The session, of `tenant`, is over: removes its grants on its own tenant's blocks. Grants by other tenants stay, so
  // that those tenants do not learn of the end.
  void EndGrantsTo(SessionId session, const Tenant& tenant);

  // Assigns `import` an id.
  Import& AddImport(Block& block, Import import);
  void EraseImport(Block& block, ImportId import);
  // Returns null for an unknown id.
  Block* FindByImport(ImportId import);
  const Block* FindByImport(ImportId import) const;
  // Marks the import as recalled. Returns whether it was not recalled before. Requires: the block has the import.
  bool MarkRecalled(Block& block, ImportId import);
  // In rising order.
  std::vector<ImportId> ImportsOf(ChannelId channel) const;
  uint64_t CountImportsOf(ChannelId channel) const;
  // Moves the imports of `from` to `to`.
  void MoveImports(ChannelId from, ChannelId to);

  // Oldest first.
  std::vector<const Block*> OfDevice(uint32_t device) const;
  void ForEach(absl::FunctionRef<void(const Block&)> visit) const;
  // Visits blocks of a later generation than `generation`, oldest first, until `visit` returns false.
  void ForEachAfter(uint64_t generation, absl::FunctionRef<bool(const Block&)> visit) const;
  // Counts blocks that have or had an owner.
  const SharedCount& places() const { return places_; }
  const SharedCount& imports() const { return imports_; }
  // Each grant counts to its block's owner.
  const SharedCount& grants() const { return grants_; }
  // Counts the blocks with an owner that the device's worker makes or is to make, also if no request wants them any
  // more.
  SharedCount CreatesOf(uint32_t device, WorkerKind worker_kind) const;
  // Counts the account's blocks in places().
  uint64_t CountOf(const Account& account) const { return CountIn(by_account_, account); }
  uint64_t size() const { return entries_.size(); }
  // Returns OK, or the violated invariant.
  absl::Status CheckInvariants() const;

  // Restores an earlier table: counters, blocks without imports, then imports. Returns null for a block or import that
  // contradicts the rest.
  const Counters& counters() const { return last_; }
  void Restore(const Counters& counters) { last_ = counters; }
  Block* Restore(Block block);
  const Import* Restore(BlockId block, Import import);

 private:
  // CountIn(): the block has an owner from now on. CountOut(): the block is gone.
  void CountIn(const Block& block);
  void CountOut(const Block& block);
  // Counts of accounts that have any.
  using Counts = absl::flat_hash_map<Account, uint64_t>;
  // By worker; may contain workers with a count of 0.
  using Creates = std::map<std::pair<uint32_t, WorkerKind>, SharedCount>;

  static bool IsCreate(const Block& block) { return block.owned() && InTheMaking(block.phase); }
  SharedCount NewCreates(uint32_t device, WorkerKind worker_kind) const;
  void TakeCreate(const Block& block, Creates* creates) const;
  void GiveCreate(const Block& block);
  static void Count(const Account& account, int64_t change, Counts* counts);
  static uint64_t CountIn(const Counts& counts, const Account& account);
  void Mark(const Block& block) { journal_.Touch(RecordKind::kBlock, block.id.value()); }
  void Mark(const Block& block, ImportId import) {
    journal_.Touch(RecordKind::kImport, block.id.value(), import.value());
  }

  Journal& journal_;
  const Limits limits_;
  Counters last_;
  uint64_t unowned_ = 0;
  uint64_t published_ = 0;
  // By generation, so oldest first.
  std::map<uint64_t, Block> entries_;
  absl::flat_hash_map<BlockId, Block*> by_id_;
  std::set<std::pair<SessionId, uint64_t>> by_owner_;
  // By the session they are granted to.
  std::set<std::pair<SessionId, uint64_t>> by_grantee_;
  // Blocks that have or had an owner, by the owner's account.
  Counts by_account_;
  SharedCount places_;
  SharedCount imports_;
  SharedCount grants_;
  Creates creates_;
  std::map<std::pair<Tenant, std::string>, Block*> by_name_;
  Counts names_by_account_;
  absl::flat_hash_map<ImportId, Block*> by_import_;
  // Channels that have any import.
  absl::flat_hash_map<ChannelId, std::set<ImportId>> by_channel_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_MEMORY_BLOCK_TABLE_H_
