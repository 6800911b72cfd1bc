// Core::Impl: the core's state and the steps that its operations share. The operations themselves are Core's
// own methods, in core_<what>.cc.

#ifndef DAEMON_CORE_CORE_IMPL_H_
#define DAEMON_CORE_CORE_IMPL_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "common/archive.h"
#include "common/row.h"
#include "daemon/core/admitted.h"
#include "daemon/core/block_table.h"
#include "daemon/core/byte_budget.h"
#include "daemon/core/core.h"
#include "daemon/core/device_state.h"
#include "daemon/core/fence_table.h"
#include "daemon/core/gang_table.h"
#include "daemon/core/invariant.h"
#include "daemon/core/journal.h"
#include "daemon/core/lease_record.h"
#include "daemon/core/mailbox.h"
#include "daemon/core/module_desk.h"
#include "daemon/core/pending.h"
#include "daemon/core/permit_pool.h"
#include "daemon/core/permit_run.h"
#include "daemon/core/permit_words.h"
#include "daemon/core/placement.h"
#include "daemon/core/plan_run.h"
#include "daemon/core/plan_table.h"
#include "daemon/core/request_memory.h"
#include "daemon/core/reservation_table.h"
#include "daemon/core/room_queue.h"
#include "daemon/core/session_table.h"
#include "daemon/core/shortage.h"
#include "daemon/core/tenant_account.h"
#include "daemon/core/tenant_use.h"

namespace berth::core {

// One call into the core: when it came, and where its effects go. As it ends those who wait for bytes are served, where
// it may have made room, and what it did to leases is told.
class Step {
 public:
  Step(Core::Impl* core, absl::Time now, Effects* effects) : now(now), effects(effects), core_(core) {}
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;
  ~Step();

  const absl::Time now;
  Effects* const effects;

 private:
  Core::Impl* const core_;
};

class Core::Impl {
 public:
  Impl(Config config, DrawId draw_id, ReadWords read, FindPermitWord find);

  // ---- core.cc: requests and their answers ----------------------------------------------------------------

  // Begins a step: whoever's deadline has passed times out first, so that lateness grants nothing.
  Step Begin(absl::Time now, Effects* effects);
  void Expire(const Step& step);
  template <typename What>
  void Emit(const Step& step, What&& what) {
    Effect& effect = step.effects->emplace_back();
    effect.number = ++last_effect_;
    effect.what.template emplace<What>(std::forward<What>(what));
    if constexpr (std::is_same_v<What, DevicesChanged>) {
      devices_changed_ = true;
      for (const auto& [ordinal, device] : devices_) journal_.Touch(RowKind::kDevice, ordinal);
    }
  }
  void Reply(const Step& step, CallId call, absl::StatusOr<Response> response);

  absl::StatusOr<const Session*> Authenticate(const Caller& caller) const;
  // The caller's channel, if it may ask for anything. Errors: SHUTTING_DOWN, BAD_CREDENTIALS, SESSION_ENDED,
  // NOT_JOINED.
  absl::StatusOr<const Channel*> AdmitCaller(const Caller& caller);

  // Takes a request in. Returns nothing if there is nothing to decide: it was refused, was answered before,
  // or goes on waiting with `call` attached and `deadline` as its new one.
  std::optional<Admitted> Admit(const Step& step, CallId call, const Caller& caller, const RequestTag& tag,
                                uint64_t fingerprint, absl::Time deadline = absl::InfiniteFuture());
  // Ends a pending request.
  void Answer(const Step& step, const RequestId& request, absl::StatusOr<Response> response);
  // Takes pending requests from where they wait, answers their calls with `status`, and serves those behind
  // them once all have left. Their memory is the caller's to settle.
  void Leave(const Step& step, const std::vector<RequestId>& requests, const absl::Status& status);
  // Leave(), as if they had never come.
  void Dismiss(const Step& step, const std::vector<RequestId>& requests, const absl::Status& status);
  std::vector<RequestId> PendingOf(const Channel& channel) const;
  // A request that has not been answered at once is one of its tenant's that wait, until it is.
  void NoteWaits(const RequestId& request);
  void NoteWaitsNoMore(const Pending& pending);

  // ---- core_session.cc ------------------------------------------------------------------------------------

  void BeginEnd(const Step& step, const Session& session);
  // Whether the session has ended and nobody can hold anything of it: every process is gone, or has hung up and it
  // holds no permit and imports no block.
  bool IsOver(const Session& session) const;
  // The same but for its streams' words, which change without a call.
  bool HoldsNothing(const Session& session) const;
  // Ends it for good where it is over; `session` is no more then. Where words alone keep it, it is looked at again.
  void FinishIfOver(const Step& step, const Session& session);
  // Has the session finished, if it is over then, by the next poll.
  void LookAtLater(const Step& step, SessionId session);

  // ---- core_permit.cc -------------------------------------------------------------------------------------

  PermitPool* FindPool(absl::string_view name);
  // ---- core_gang.cc: several permits at once (permit_run.h) -----------------------------------------------

  // Errors: INVALID_FIELD; NOT_FOUND (pool); those of a reservation.
  absl::StatusOr<Gang> MakeGang(const Admitted& admitted, const GangRequest& request, absl::Time now);
  // Errors: ALREADY_HELD.
  absl::Status CheckNotHeld(const Gang& gang) const;
  static absl::Status AlreadyHeld(const PermitView& permit);
  // Takes the gang in for a request that is pending: granted, refused, or waiting when this returns.
  void StartGang(const Step& step, const Admitted& admitted, const GangRequest& request);
  uint64_t NextWaiter() {
    journal_.Touch(RowKind::kCounters);
    return ++permit_ids_.last_waiter;
  }
  // Sends warm blocks back where that makes room for what it would reserve.
  void TrimForGang(const Step& step, const Gang& gang);
  ReservationView ReserveForGang(const Step& step, const Waiting& waiting);
  // What gangs would reserve may be free now, or can never be.
  void ServeGangRoom(const Step& step);

  // ---- core_reading.cc: what drivers say of their devices --------------------------------------------------

  // Whose a process is: a channel's that is its own or an ancestor's.
  using SessionsByPid = absl::flat_hash_map<int32_t, SessionId>;
  SessionsByPid PidsOfSessions() const;
  static SessionId SessionOf(const SessionsByPid& pids, const ProcessReading& process);
  Placement::Usage UsageOf(const Device& device, const SessionsByPid& pids);
  bool HasPermit(SessionId session) const;
  void SetReadings(PermitView* permit) const;

  // Tells every process of the permit's session what becomes of it: which of them nest in it they know themselves.
  void TellHolders(const Step& step, const PermitView& permit, attach::DeliveryKind what);
  // Tells the placement what the devices are and have.
  void UpdatePlacement();
  // Whether it knows the device as it is.
  bool IsPlaced(const Device& device) const;
  // Looks anew at those who wait where permits of other pools, blocks or devices have come or gone.
  void ServePlaced(const Step& step);
  // The process keeps no permit any more.
  void EndKeepingBy(const Step& step, ChannelId channel);
  // Has the process's page made where it has none, and delivered for the request.
  void SendOwnPage(const Step& step, const RequestId& request);
  absl::StatusOr<ReleaseResult> ReleaseAcquisition(const Step& step, SessionId session, AcquisitionId acquisition,
                                                   LeaseEnd how = LeaseEnd::kReleased);

  // ---- core_allocate.cc -----------------------------------------------------------------------------------

  // By UUID where that is not empty. Errors: NOT_FOUND, OUT_OF_RANGE.
  absl::StatusOr<Device*> FindDevice(uint32_t ordinal, const std::string& uuid);
  // The same, and it serves. Errors: DEVICE_STOPPED too.
  absl::StatusOr<Device*> FindServing(uint32_t ordinal, const std::string& uuid);
  // By the request's wish, one with room in the caller's budgets where there is one. Errors: Placement::CheckWish()'s;
  // NO_DEVICE; FindServing()'s of bytes.
  absl::StatusOr<Device*> PickDevice(const AllocateRequest& request, const Session& session);
  // A block made ahead, or being made so, that would do.
  std::optional<BlockId> FindWarm(const Waiting& waiting, const RoomAsk& ask) const;
  // The bytes that a block of `bytes` really takes.
  absl::StatusOr<Bytes> Measure(const Device& device, Bytes bytes) const;
  // Errors: LIMIT.
  absl::Status MayQueue(const Channel& channel, const Tenant& tenant) const;
  // Whether the tenant, which has so many, may have one block more. Errors: LIMIT.
  absl::Status CheckBlockQuota(const Tenant& tenant, uint64_t own) const;
  // Whether the channel may be given one import more, and its fd.
  absl::Status MayImport(const Channel& channel) const;
  // Whether it may be given one fd more.
  absl::Status MayDeliver(const Channel& channel) const;
  // Gives the request a block made ahead, or has one made.
  void Allocate(const Step& step, const Waiting& waiting);
  // The block is for that request from now on.
  void Assign(Block& block, const Waiting& waiting);
  // The block is there: its maker's request is answered, with the fd before the answer.
  void FinishMaking(const Step& step, Block& block);
  // Sends warm blocks back until `bytes` fit once everything on its way is back.
  void Trim(const Step& step, Device& device, Bytes bytes);
  // A block of that size was taken: the shelf is to be filled, now or after a while.
  void PlanRefill(const Step& step, Device& device, Bytes bytes);
  // Makes blocks of a size ahead of demand, where there is room that nobody waits for.
  void Refill(const Step& step, Device& device, Bytes bytes);
  void RefillDue(const Step& step);

  // ---- core_room.cc: requests that wait for bytes ---------------------------------------------------------

  // Takes a request in that may have to wait: served, refused, or queued when this returns.
  void Enqueue(const Step& step, Waiting waiting);
  // Whether it may wait, lacking that. Errors: LIMIT; DEVICE_REBUILDING.
  absl::Status MayWait(const Waiting& waiting, const Shortage& shortage) const;
  // Those who wait are looked at as the step ends.
  void NoteRoom() { room_changed_ = gang_room_changed_ = true; }
  // Serves those who wait where there was something of note.
  void ServeRoom(const Step& step);
  // Serves those who wait, in their order, as far as bytes and workers go.
  void Drain(const Step& step);
  // What the request lacks, if the room in `kept` is somebody else's.
  Shortage Assess(const Waiting& waiting, const std::vector<ByteBudget*>& kept);
  // Whether its bytes count in one of these.
  bool Takes(const Waiting& waiting, const std::vector<ByteBudget*>& budgets);
  bool MayServe(const Waiting& waiting) const;
  // Whether a call waits for it: not yet, where it waited for an earlier broker.
  bool IsAttended(const Waiting& waiting) const;
  // What it asks for is given to nobody behind it.
  void KeepRoom(const Waiting& waiting, std::vector<ByteBudget*>* kept);
  void Serve(const Step& step, const RequestId& request);
  // Sends warm blocks back where that makes room for the request.
  void TrimFor(const Step& step, const Waiting& waiting, const Shortage& shortage);
  absl::Status RefuseOver(const Shortage& shortage);
  // Times out who waited too long and ends what is kept or reserved too long.
  void ExpireRoom(const Step& step);
  // A request leaves the queue without its bytes: what it drew goes back.
  void GiveUp(const Waiting& waiting);
  // The same, and it is refused. Requires: it waits.
  void TurnAway(const Step& step, const RequestId& request, const absl::Status& why);

  // ---- core_budget.cc: who is charged ---------------------------------------------------------------------

  ByteBudget& SessionBudget(SessionId session, uint32_t device);
  ByteBudget& TenantBudget(const Tenant& tenant, uint32_t device);
  // Innermost first. Requires: the session is there.
  std::array<LayerBudget, 3> LayersOf(uint32_t device, SessionId session, const Tenant& tenant);
  // Beside the device: the block's bytes are these ones' from now on.
  void ChargeTo(Block& block, SessionId session, std::vector<Tenant> tenants);
  // A quarantined block is its importers' tenants', or the last one's.
  void ChargeImporters(Block& block);
  // Visits every account that the block is in.
  void ForEachBudget(const Block& block, absl::FunctionRef<void(ByteBudget&)> visit);
  // Forgets a tenant that has nothing any more.
  void EraseIfIdle(const Tenant& tenant);
  BudgetView ViewBudget(const BudgetOwner& of, uint32_t device);
  // Gives a new account its place in the list; and takes those of somebody who is gone out.
  ByteBudget& Enlist(ByteBudget& budget, const BudgetOwner& of, uint32_t device);
  void Delist(const std::map<uint32_t, ByteBudget>& budgets);
  static BudgetView ViewBudget(Layer layer, uint32_t device, const ByteBudget& budget);
  void SetDeviceLimit(const Step& step, Device& device, Bytes limit, bool by_hand);
  absl::Status CheckMaySet(const Caller& caller, const SetBudgetRequest& request);
  absl::Status CheckLimit(const Device& device, const SetBudgetRequest& request) const;

  // ---- core_reserve.cc ------------------------------------------------------------------------------------

  absl::StatusOr<std::vector<RoomAsk>> MeasureAll(const ReserveRequest& request);
  // Errors: LIMIT.
  absl::Status MayReserve(SessionId session) const;
  void MakeReservation(const Step& step, const Waiting& waiting);
  Reservation& AddReservation(const Step& step, const Waiting& waiting);
  // Sets bytes aside in every layer that the reservation counts in, or gives them up.
  void Claim(const Reservation& reservation, uint32_t device, Bytes bytes);
  void Unclaim(SessionId session, const Tenant& tenant, uint32_t device, Bytes bytes);
  // What is left of it is nobody's any more.
  void DropReservation(const Step& step, Reservation& reservation, LogCause cause);
  // Takes `bytes` out of the session's reservation, which stay charged. Errors: NOT_FOUND; OVER_BUDGET.
  absl::Status Draw(SessionId session, ReservationId id, uint32_t device, Bytes bytes);
  // A block that was drawn and is nobody's is gone: its bytes are the reservation's again, where it is still there.
  void Restore(const Block& block);
  // What the reservation has on a device: what is left, and what was drawn and is in live blocks.
  Bytes HeldIn(const Reservation& reservation, uint32_t device);
  ReservationView ViewReservation(const Reservation& reservation) const;

  // ---- core_context.cc: context workers -------------------------------------------------------------------

  // EXPORT_KIND for a device that has no context worker.
  static absl::Status CheckHasContext(const Device& device);
  // What a block for the caller is exported as. Errors: EXPORT_KIND.
  absl::StatusOr<ExportKind> ChooseKind(const Device& device, const ExportKinds& kinds) const;
  // Errors: EXPORT_KIND.
  static absl::Status CheckTakes(const Block& block, const ExportKinds& kinds, bool read_only);
  // Has the device's context worker started if it is idle and somebody waits for it.
  void StartContextIfWanted(const Step& step, Device& device);
  // There is one block more or less, or a worker: it is to be ended after a while, or not.
  void NoteContextNeed(const Step& step, Device& device);
  // Ends context workers that nobody has needed for long.
  void EndIdleContexts(const Step& step);
  // Whether the block's memory went with the worker that made it.
  bool IsLost(const Block& block) const;

  // ---- core_worker.cc -------------------------------------------------------------------------------------

  void AskCreate(const Step& step, Block& block);
  void AskRelease(const Step& step, Block& block);
  void NotMade(const Step& step, Block& block, const absl::Status& status);
  void RunRetries(const Step& step, Device& device);
  // That worker makes nothing any more: whoever waits for it is refused.
  void RefuseWaiting(const Step& step, Device& device, Lane lane);

  // ---- core_device.cc -------------------------------------------------------------------------------------

  // Has the workers ended that are at a call for too long.
  void EndHungWorkers(const Step& step);
  // For the operator's verbs. Errors: NOT_FOUND, DEVICE_STOPPED (dropped).
  absl::StatusOr<Device*> FindForOperator(uint32_t device);
  absl::StatusOr<DeviceView> Restart(const Step& step, uint32_t device, Lane lane);
  // What the worker, or for what is about the device both, is at is left to the next one.
  void Order(const Step& step, Device& device, Lane lane, DeviceOrder order, const std::string& why);
  static absl::Status OutOfService(const Device& device, Lane lane);

  // ---- core_inventory.cc: what the monitor says of devices, and draining -----------------------------------

  // Brings stopped workers back, after a look at the device.
  void Enable(const Step& step, Device& device);
  // Whoever waits for new bytes there is refused.
  void RefuseDrained(const Step& step, Device& device);
  static absl::Status Draining(const Device& device);
  // One that is dropped is nobody's way any more: it is by itself.
  void UpdateIslands();
  // Has a monitor ended that says nothing of a device any more.
  void EndHungMonitor(const Step& step);
  // Why a block of the device is stale, or null: in the order in which GpuRef::Access() looks.
  const char* WhyStale(const Block& block) const;

  // ---- core_block.cc: blocks and imports ------------------------------------------------------------------

  Device& DeviceOf(const Block& block) { return devices_.at(block.device); }
  // Takes the block through `event`: phase, account, shelf, and for one that is gone its row. `block` is no
  // more then.
  void Apply(const Step& step, Block& block, BlockEvent event);
  // Nobody wants the block that is being made or kept warm.
  void Abandon(const Step& step, Block& block);
  // Nobody makes the block: it is gone, or goes back where an earlier broker may have had it made. What never was is
  // released at once.
  void Unmake(const Step& step, Block& block);
  // The block's owner is done with it.
  void FreeBlock(const Step& step, Block& block, LogCause cause);
  core::Import& StartImport(const Step& step, Block& block, const RequestId& request, ReadOnly read_only);
  void EndImport(const Step& step, Block& block, ImportId import, LogCause how);
  // EndImport() if the process has not been sent the fd. Returns whether it ended.
  bool WithdrawImport(const Step& step, ChannelId channel, ImportId import);
  void SendAll(const Step& step, std::vector<Deliver> sends);
  static absl::Status Stale(const BlockHandle& handle, absl::string_view why);
  // OK if the handle is of this node and its life. Errors: STALE.
  absl::Status CheckHandle(const BlockHandle& handle) const;
  BlockHandle HandleOf(const Block& block) const;
  // A live block of the session's, or a published one of its tenant's. Errors: STALE, NOT_FOUND.
  absl::StatusOr<Block*> FindOwned(SessionId session, const BlockHandle& handle);
  // A live block that the session may import over the channel. Errors: STALE, DENIED, LIMIT.
  absl::StatusOr<Block*> FindImportable(const Session& session, const Channel& channel,
                                        const BlockHandle& handle);
  // A block of that name that the session may import. Errors: DENIED, STALE, LIMIT.
  absl::StatusOr<Block*> FindNamed(const Session& session, const Channel& channel, const std::string& name);
  // Ends imports of the channel's own that its process has unmapped; others are left alone.
  void EndImports(const Step& step, ChannelId channel, const std::vector<ImportId>& imports);
  // Errors: FindOwned()'s, NAME_TAKEN, BLOCK_MAPPED, LIMIT.
  absl::StatusOr<Block*> Publish(const Session& session, const PublishRequest& request);
  // Errors: FindOwned()'s, NOT_FOUND (the session granted to), LIMIT.
  absl::Status AddGrant(SessionId owner, const GrantRequest& request);

  // ---- core_fence.cc --------------------------------------------------------------------------------------

  FenceStep StepOf(const Step& step, PrepareOutcomes* outcomes) const {
    return FenceStep{.now = step.now, .read = read_words_, .outcomes = outcomes};
  }
  // Answers the prepares that came out of a step of the table's, each after the pages that it names.
  void AnswerPrepares(const Step& step, PrepareOutcomes outcomes);
  void AnswerPrepare(const Step& step, const RequestId& request, const absl::StatusOr<Prepared>& prepared);
  // A live block that the channel has imported so that it may do that. Errors: DENIED, STALE.
  absl::Status CheckUse(ChannelId channel, const BlockUse& use) const;
  // Whether one process tracks the block alone that is not `importer` and has streams; asks it to hand over.
  bool AwaitHandOver(const Step& step, Block& block, ChannelId importer);
  void FinishImport(const Step& step, const RequestId& request, Block& block, bool read_only);
  // Goes on with imports whose block has been handed over, or is not to be had any more.
  void ServeImports(const Step& step);
  void ExpireFences(const Step& step);
  absl::Time next_fence_deadline() const;
  // The fence part of a process's end, and of a block's being freed.
  void EndFencesOf(const Step& step, ChannelId channel);
  void EndFencesOf(const Step& step, Block& block);
  // Whether the block's uses have ended, so that its memory may go back; else it is looked at again.
  bool MayGoBack(const Step& step, Block& block);
  // Looks at the blocks that wait for it.
  void Poll(const Step& step);
  void PollSoon(const Step& step);
  void FinishLeaving(const Step& step);
  absl::Status CheckFences() const;

  // ---- core_forget.cc -------------------------------------------------------------------------------------

  absl::StatusOr<ForgetOutcome> Settle(const Step& step, const Channel& channel, uint64_t sequence);
  // Takes back what the answer gave.
  ForgetOutcome Undo(const Step& step, const Channel& channel, const Response& answer);

  // ---- core_log.cc ----------------------------------------------------------------------------------------

  // What is to be logged of a request, with its answer; the caller adds what it knows, before the next one.
  LogRecord& Note(const Admitted& admitted, LogAction action);
  // The same of a use of each of the blocks. Requires: uses are logged.
  void NoteUses(const Admitted& admitted, LogAction action, const std::vector<BlockUse>& uses,
                const LogRecord& known);
  // Logs a request's notes with its outcome.
  void LogAnswer(const Step& step, Pending& pending, const absl::StatusOr<Response>& response);
  void Log(const Step& step, LogRecord record, const absl::Status& status = absl::OkStatus());
  // The open use is abandoned because its request was forgotten.
  void LogForgotten(const Step& step, ChannelId channel, UseId use);
  void LogHandOver(const Step& step, const Block& block, ChannelId from);
  // The process of the channel has torn the block.
  void LogTorn(const Step& step, BlockId block, ChannelId by);
  // A record of what happens to a block.
  LogRecord RecordOf(const Block& block, LogAction action, LogCause cause = LogCause::kNone) const;

  // ---- core_lease.cc: what is told of leases as they begin and end ------------------------------------------

  LeaseRecord LeaseOf(const Block& block) const;
  LeaseRecord LeaseOf(const Reservation& reservation) const;
  LeaseRecord LeaseOf(const Plan& plan) const;
  // It is granted to who asked. Requires: the request is pending.
  void NoteGrant(const Step& step, LeaseRecord&& lease, const RequestId& request);
  static LeaseEnd EndFor(LogCause cause);

  // ---- core_recall.cc -------------------------------------------------------------------------------------

  // A live or freed block of the caller's tenant, or on admin.sock of anybody. Errors: NOT_FOUND.
  absl::StatusOr<Block*> FindById(const Caller& caller, BlockId block);
  // The block's release, tried again, has ended.
  void NoteReaped(const Step& step, const Block& block, bool back);

  // ---- core_view.cc ---------------------------------------------------------------------------------------

  // For the eyes of `viewer`, or of an operator: other tenants' imports are shown to the block's own tenant
  // alone.
  BlockView ViewBlock(const Block& block, const Tenant* viewer) const;
  // Without its imports.
  BlockView DescribeBlock(const Block& block) const;
  // For whom has just been given `import`: an answer is kept, so it does not grow with other importers.
  BlockView ViewImported(const Block& block, const core::Import& import) const;
  DeviceView ViewDevice(const Device& device) const;
  SessionView ViewSession(const Session& session) const;

  // ---- core_rows.cc: what outlives the broker --------------------------------------------------------------
  //
  // Of each group of kinds: which rows there are; the content of one, or that it is gone (false); and taking one in, in
  // the order of keys, after the groups before it.

  bool WriteRow(const RowKey& key, ArchiveWriter& archive) const;
  // core_session_rows.cc
  void ListSessionRows(std::vector<RowKey>* keys) const;
  bool WriteSessionRow(const RowKey& key, ArchiveWriter& archive) const;
  void ReadSessionRow(const RowKey& key, ArchiveReader& archive);
  bool WriteRequest(const RequestId& request, ArchiveWriter& archive) const;
  // One that is pending is in no place yet: the row of what it waits for puts it there, or it is forgotten.
  void ReadRequest(const RequestId& request, ArchiveReader& archive);
  // After the last row.
  void FinishRestoringSessions();
  void ResumeSessions(const Step& step);
  // Requests that waited, and that nobody has asked for again in time, are as if they had never come.
  void DropAbsent(const Step& step);
  // A call waits again for a request that was absent.
  void ComeBack(const Step& step, const RequestId& request);
  // core_permit_rows.cc
  void ListPermitRows(std::vector<RowKey>* keys) const;
  bool WritePermitRow(const RowKey& key, ArchiveWriter& archive) const;
  void ReadPermitRow(const RowKey& key, ArchiveReader& archive);
  void ReadGang(uint64_t number, ArchiveReader& archive);
  void AddPool(const PoolConfig& config);
  // After the last row.
  void FinishRestoringPermits();
  void ResumePermits(const Step& step);
  // core_memory_rows.cc
  void ListMemoryRows(std::vector<RowKey>* keys) const;
  bool WriteMemoryRow(const RowKey& key, ArchiveWriter& archive) const;
  void ReadMemoryRow(const RowKey& key, ArchiveReader& archive);
  void ReadMemoryCounters(ArchiveReader& archive);
  bool WriteDevice(uint64_t ordinal, ArchiveWriter& archive) const;
  void ReadDevice(uint64_t ordinal, ArchiveReader& archive);
  bool WriteBudget(uint64_t number, ArchiveWriter& archive) const;
  void ReadBudget(uint64_t number, ArchiveReader& archive);
  void ReadReservation(ReservationId id, ArchiveReader& archive);
  void ReadStream(StreamKey stream, ArchiveReader& archive);
  void ReadRoomWaiter(uint64_t number, ArchiveReader& archive);
  // core_block_rows.cc
  bool WriteImport(BlockId block, ImportId import, ArchiveWriter& archive) const;
  void ReadBlock(BlockId id, ArchiveReader& archive);
  void ReadImport(BlockId block, ImportId id, ArchiveReader& archive);
  // Its account, its place on the shelf, and whoever waits for it.
  void RestoreBlock(const Block& block);
  void ResumeMemory(const Step& step);

  // ---- core_check.cc: what CheckBooks() is made of --------------------------------------------------------

  absl::Status CheckPermits() const;
  absl::Status CheckPending() const;
  absl::Status CheckTenants() const;
  absl::Status CheckBlocks() const;
  absl::Status CheckDevices() const;
  absl::Status CheckBudgets() const;
  absl::Status CheckRoom() const;

  // ---- State ----------------------------------------------------------------------------------------------

  // A call that waits until the releases that it had tried again have ended.
  struct Reaping {
    std::set<BlockId> open;
    ReapResult result;
  };

  template <typename IdType>
  IdType NewId() {
    return IdType(draw_id_());
  }

  // Constant after construction.
  const Config config_;
  const DrawId draw_id_;
  const ReadWords read_words_;

  bool shutting_down_ = false;
  Journal journal_;
  uint64_t last_effect_ = 0;
  uint64_t last_record_ = 0;
  LeaseLog leases_;
  // Whose account each number is. A device's is its ordinal and 1: the same in every life of the broker.
  struct BudgetPlace {
    BudgetOwner of;
    uint32_t device = 0;
  };
  uint64_t last_budget_ = kMaxDeviceOrdinals;
  std::map<uint64_t, BudgetPlace> budgets_;
  std::map<CallId, Reaping> reapings_;
  SessionTable sessions_;
  PendingRequests pending_;
  // Of calls not answered yet.
  absl::flat_hash_map<CallId, PendingRequest*> calls_;
  // Pending since before the broker was started, and no call waits for them; and until when that may be so.
  std::set<RequestId> absent_;
  absl::Time absent_until_ = absl::InfiniteFuture();
  PermitIds permit_ids_;
  Placement placement_;
  TenantUse tenant_use_;
  // journal_.memory_touches() when it was last brought up to date; nothing after a restart.
  std::optional<uint64_t> placed_touches_;
  PermitWords permit_words_;
  std::map<std::string, PermitPool, std::less<>> pools_;
  absl::flat_hash_map<uint64_t, PermitPool*> pools_by_number_;
  GangTable gangs_;
  // A gang has come to something: those behind it may go on.
  bool serve_pools_ = false;
  std::map<uint32_t, Device> devices_;
  // The least of their refill_at.
  absl::Time next_refill_ = absl::InfiniteFuture();
  std::map<Tenant, TenantAccount> tenants_;
  RoomQueue room_;
  bool room_changed_ = false;
  // The same for gangs that would reserve some.
  bool gang_room_changed_ = false;
  ReservationTable reservations_{&journal_};
  PlanTable plans_;
  // Of a plan's devices one may not be what it was.
  bool devices_changed_ = false;
  BlockTable blocks_{&journal_};
  Mailboxes mailboxes_;
  FenceTable fences_;
  ModuleDesk modules_;
  // By the time that they end waiting.
  std::set<std::pair<absl::Time, RequestId>> waiting_imports_;
  // Whose pages each channel was sent.
  std::map<ChannelId, std::set<ChannelId>> sent_pages_;
  // Retired blocks that something still uses, and sessions that may be over: looked at again at `next_poll_`, ever more
  // seldom.
  std::set<BlockId> busy_;
  std::set<SessionId> leaving_;
  absl::Time next_poll_ = absl::InfiniteFuture();
  absl::Duration poll_pause_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_CORE_IMPL_H_
