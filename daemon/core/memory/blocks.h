// Blocks: the blocks from their making to their release, their names, grants and imports. A WaitPlace for the requests
// whose block is being made.

#ifndef DAEMON_CORE_MEMORY_BLOCKS_H_
#define DAEMON_CORE_MEMORY_BLOCKS_H_

#include <cstdint>
#include <string>
#include <vector>

#include <berth/block_handle.h>
#include <berth/bytes.h>
#include <berth/end_notice.h>
#include <berth/ids.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/base/archive.h"
#include "daemon/core/memory/block_table.h"
#include "daemon/core/requests/wait_place.h"
#include "daemon/core/sessions/session_table.h"
#include "daemon/core/types/block_phase.h"
#include "daemon/core/types/block_types.h"
#include "daemon/core/types/budget_types.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/log_record.h"
#include "daemon/core/types/page.h"
#include "daemon/core/types/request_id.h"
#include "daemon/core/types/step_context.h"

namespace berth::core {

struct Device;
struct Managers;

// Thread-compatible; part of the core.
class Blocks final : public WaitPlace {
 public:
  // `core` outlives the manager.
  explicit Blocks(Managers& core);

  // ---- Events and queries (core.h) ---------------------------------------------------------------------------

  Page<BlockView> ListBlocks(const Caller& caller, const PageRequest& page) const;
  UsageView GetUsage(const Caller& caller) const;
  void ImportLetGo(StepContext& step, ChannelId channel, ImportId import);
  void Free(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag, const FreeRequest& request);
  void Grant(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag, const GrantRequest& request);
  void Import(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
              const ImportRequest& request);
  void BlockLost(StepContext& step, BlockId block);
  // Notifies the importers of the blocks whose memory is lost as the worker's generation advances to `generation`;
  // kDropped: as the device is dropped. The blocks stay until their owners free them.
  static constexpr uint64_t kDropped = UINT64_MAX;
  void MemoryLost(StepContext& step, const Device& device, WorkerKind worker_kind, uint64_t generation);
  void Publish(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
               const PublishRequest& request);
  void Unpublish(StepContext& step, CallId call, const Caller& caller, const RequestTag& tag,
                 const UnpublishRequest& request);
  absl::StatusOr<BlockView> Recall(StepContext& step, const Caller& caller, BlockId block);
  absl::StatusOr<BlockView> FreeById(StepContext& step, const Caller& caller, BlockId block);

  // ---- For the other managers -------------------------------------------------------------------------------

  // Checks that the channel may get one more import and its fd.
  absl::Status MayImport(const Channel& channel) const;
  // Whether the block's memory was lost with the worker that made it.
  bool IsLost(const Block& block) const;
  // Returns why a block of the device is stale, or null. Checks in the order of GpuRef::Access().
  const char* WhyStale(const Block& block) const;
  // Takes the block through `event`: phase, account, warm cache. Erases a gone block, which invalidates `block`.
  void Apply(StepContext& step, Block& block, BlockEvent event);
  // Gives up a block that is being made or warm.
  void Abandon(StepContext& step, Block& block);
  // Ends a block that no worker makes. Where an earlier broker may have had it made, the block is released instead of
  // erased; a release of a block that was never made succeeds at once.
  void Unmake(StepContext& step, Block& block);
  // Frees the block for its owner.
  void FreeBlock(StepContext& step, Block& block, LogCause cause);
  core::Import& StartImport(StepContext& step, Block& block, const RequestId& request, ReadOnly read_only);
  void EndImport(StepContext& step, Block& block, ImportId import, LogCause how);
  // Calls EndImport() if the process has not been sent the fd. Returns whether the import ended.
  bool WithdrawImport(StepContext& step, ChannelId channel, ImportId import);
  static const char* WhyFreed(const Block& block) { return block.lost ? kLostWithDaemon : "freed already"; }
  BlockHandle HandleOf(const Block& block) const;
  // Finds a live block of the session, or a published one of its tenant. Errors: STALE, NOT_FOUND.
  absl::StatusOr<Block*> FindOwned(SessionId session, const BlockHandle& handle);
  // Finds a live block that the session may import over the channel. Errors: STALE, DENIED, LIMIT.
  absl::StatusOr<Block*> FindImportable(const Session& session, const Channel& channel, const BlockHandle& handle);
  void FinishImport(StepContext& step, const RequestId& request, Block& block, bool read_only);
  // Returns the view for `viewer`, or for an operator: only the block's own tenant sees other tenants' imports.
  BlockView ViewBlock(const Block& block, const Tenant* viewer) const;
  // Shows only `import`, the caller's: an answer is cached, so it does not grow with other importers.
  BlockView ViewImported(const Block& block, const core::Import& import) const;
  bool WriteImport(BlockId block, ImportId import, ArchiveWriter& archive) const;
  void ReadBlock(BlockId id, ArchiveReader& archive);
  void ReadImport(BlockId block, ImportId id, ArchiveReader& archive);
  absl::Status CheckBlocks() const;

  const BlockTable& table() const { return blocks_; }
  // As the table's methods of that name. The found blocks are marked as changed.
  Block* Find(BlockId id) { return blocks_.Find(id); }
  Block* FindByImport(ImportId import) { return blocks_.FindByImport(import); }
  std::vector<Block*> OwnedBy(SessionId owner) { return blocks_.OwnedBy(owner); }
  Block& Add(BlockId id, uint32_t device, Bytes bytes, BlockPhase phase) {
    return blocks_.Add(id, device, bytes, phase);
  }
  void SetOwner(Block& block, SessionId owner, const Tenant& tenant, const std::string& label) {
    blocks_.SetOwner(block, owner, tenant, label);
  }
  void GiveBack(Block& block, SessionId owner) { blocks_.GiveBack(block, owner); }
  void EndGrantsTo(SessionId session, const Tenant& tenant) { blocks_.EndGrantsTo(session, tenant); }
  void MoveImports(ChannelId from, ChannelId to) { blocks_.MoveImports(from, to); }
  void RestoreCounters(const BlockTable::Counters& counters) { blocks_.Restore(counters); }

  // WaitPlace. A request whose block is being made has no deadline, and continues without its call.
  bool SetDeadline(const RequestId&, const WaitTicket&, absl::Time) override { return false; }
  void Leave(StepContext& step, const RequestId& request, const WaitTicket& ticket) override;
  void Expire(StepContext&) override {}
  absl::Time next_deadline() const override { return absl::InfiniteFuture(); }
  bool EndsInImport(const RequestId&) const override { return true; }
  bool OutlivesCall(const RequestId&) override { return true; }

 private:
  // Notifies each process that has the block imported of its end.
  void NotifyImporters(StepContext& step, const Block& block, EndReason why);
  // Errors: EXPORT_KIND.
  static absl::Status CheckTakes(const Block& block, const ExportKinds& kinds, bool read_only);
  static absl::Status Stale(const BlockHandle& handle, absl::string_view why);
  // Checks that the handle is of this node and incarnation. Errors: STALE.
  absl::Status CheckHandle(const BlockHandle& handle) const;
  // Whether the block is the session's, its tenant's, or granted to one of them.
  static bool HasRightTo(const Session& session, const Block& block);
  // Finds a block of that name that the session may import. Errors: DENIED, STALE, LIMIT.
  absl::StatusOr<Block*> FindNamed(const Session& session, const Channel& channel, const ImportRequest& request);
  // Ends those of the channel's own imports that its process has unmapped; ignores all others.
  void EndImports(StepContext& step, ChannelId channel, const std::vector<ImportId>& imports);
  // Errors: FindOwned()'s, NAME_TAKEN, BLOCK_MAPPED, LIMIT.
  absl::StatusOr<PublishResult> PublishAs(StepContext& step, const Session& session, const PublishRequest& request);
  // Errors: FindOwned()'s, NOT_FOUND (the session granted to), LIMIT.
  absl::Status AddGrant(SessionId owner, const GrantRequest& request);
  // Finds a live or freed block of the caller's tenant; on admin.sock of any tenant. Errors: NOT_FOUND.
  absl::StatusOr<Block*> FindById(const Caller& caller, BlockId block);
  // Leaves the imports out.
  BlockView DescribeBlock(const Block& block) const;
  // Restores its charges, its place in the warm cache, and the request that waits for it.
  void RestoreBlock(const Block& block);

  Managers& core_;
  BlockTable blocks_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_MEMORY_BLOCKS_H_
