// Core: the broker's state machine. It decides who gets permits and blocks, and keeps the books of who has
// what.
//
// It is pure: no clock, no randomness, no threads, no gRPC, no CUDA. Time and ids come in, effects go out as
// numbered values; the same inputs give the same effects, so a seed replays any run (tests/sim). The broker
// calls it under its lock and carries the effects out in their order afterwards.
//
// Thread-compatible; one caller at a time.

#ifndef DAEMON_CORE_CORE_H_
#define DAEMON_CORE_CORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/archive.h"
#include "common/bytes.h"
#include "common/ids.h"
#include "common/row.h"
#include "common/secret.h"
#include "daemon/core/block_types.h"
#include "daemon/core/budget_types.h"
#include "daemon/core/call_watch.h"
#include "daemon/core/caller.h"
#include "daemon/core/device_facts.h"
#include "daemon/core/device_types.h"
#include "daemon/core/effects.h"
#include "daemon/core/fence_table.h"
#include "daemon/core/fence_types.h"
#include "daemon/core/gang_types.h"
#include "daemon/core/lease_record.h"
#include "daemon/core/module_types.h"
#include "daemon/core/page.h"
#include "daemon/core/permit_types.h"
#include "daemon/core/permit_words.h"
#include "daemon/core/plan_types.h"
#include "daemon/core/row_kind.h"
#include "daemon/core/session_types.h"
#include "daemon/core/standing.h"
#include "daemon/core/tenant_quota.h"

namespace berth::core {

// Every bound of the core's, with what happens at it: LIMIT, naming the bound, and nothing changed.
struct Limits {
  uint64_t sessions = 10'000;
  uint64_t channels_per_session = 4'096;
  uint64_t waiters_per_pool = 16'384;
  // The fd of each lives three times (broker, vault, importer), so blocks are what the fd limit bounds first.
  uint64_t blocks = 16'384;
  uint64_t imports_per_block = 1'024;
  // A process that maps half of all blocks, each once.
  uint64_t imports_per_channel = 4'096;
  uint64_t grants_per_block = 256;
  uint64_t names_per_tenant = 1'024;
  uint64_t answers_per_channel = 1'024;
  // Deliveries not yet sent because too many fds are unacknowledged. Recalls are sent past it.
  uint64_t queued_deliveries_per_channel = 1'024;
  uint64_t unacknowledged_fds_per_channel = 8;
  uint64_t unacknowledged_fds_per_tenant = 64;
  // A waiter that others passed this often is passed no more: units are kept for it.
  uint64_t passes_before_hold = 16;
  // Requests for bytes that wait for a device's worker, for freed bytes to be back, or for room. While the worker is
  // being started the next one is answered DEVICE_REBUILDING.
  uint64_t waiting_allocations_per_device = 1'024;
  // Of them, a tenant's that wait for room that others hold: the rest of the queue is for the others.
  uint64_t patient_allocations_per_tenant = 512;
  // What streams may open and use; each names itself in the refusal.
  FenceTable::Limits fences;
  // The longest that a prepared use waits for open ones, and an import for the block to be handed over.
  absl::Duration prepare_patience = absl::Seconds(1);
  // One that waits for room and was passed so often has what it lacks kept for it, for so long at most.
  uint64_t passes_before_keep = 16;
  absl::Duration longest_keep = absl::Seconds(5);
  uint64_t reservations_per_session = 256;
  uint64_t plans_per_session = 256;
  // Tenants with a budget of their own that have no session and no bytes.
  uint64_t absent_tenants = 4'096;
  ModuleLimits modules;
};

struct DeviceConfig {
  uint32_t ordinal = 0;
  std::string uuid;
  std::string name;
  MemoryKind kind = MemoryKind::kHost;
  uint64_t generation = 1;
  // Whether it offers CUDA_IPC blocks; if not, why, for people. And the generation of what its context worker makes.
  bool cuda_ipc = true;
  std::string why_no_cuda_ipc;
  uint64_t context_generation = 0;
  Bytes total;
  Bytes budget;
  Bytes granularity = MiB(2);
  // Whether its memory's uses can be ordered by fences.
  bool tracks_fences = true;
  // For permits that name a device (placement.h): bytes never given to anybody, those that a process takes for its
  // context, whether a context worker's tell better, and those that others had when the daemon started.
  Bytes permit_reserve;
  Bytes context;
  bool measure_context = false;
  Bytes others;
  // Shown, and no more: what follows from it is the vault's.
  ClearsCheck clears;
  DeviceFacts facts;
};

struct Config {
  uint64_t node = 0;
  uint64_t incarnation = 0;
  uint64_t epoch = 1;
  std::vector<PoolConfig> pools;
  std::vector<DeviceConfig> devices;
  // Of every tenant and session on every device, where nobody set another; nothing for no limit but the outer ones.
  std::optional<Bytes> tenant_budget;
  std::optional<Bytes> session_budget;
  // Blocks kept ready per device and size once that size was asked for; 0 for none.
  uint32_t warm_blocks_per_size = 2;
  // The shelf is filled again when so much time has passed since a block was taken, so that making blocks does
  // not slow down those who take several; at once when less than a quarter is left.
  absl::Duration warm_refill_delay = absl::Milliseconds(10);
  // How long a worker may be at a driver call before it is taken to hang.
  CallLimits calls;
  // How long a context worker stays that nobody needs: starting one takes 0.3 s, keeping one 0.5 GiB of the device.
  absl::Duration context_idle = absl::Seconds(30);
  // Sizes (per device, most recently asked first) that are kept warm, and the share of the budget they may
  // take.
  uint32_t warm_sizes = 4;
  Bytes warm_limit = GiB(1);
  // Whether the log has the uses of shared blocks, too: several records for each launch.
  bool log_fences = false;
  Limits limits;
  QuotaTable quotas;
};

class Core {
 public:
  // Draws ids that nobody can guess and that never repeat: sessions, channels and blocks.
  using DrawId = std::function<uint64_t()>;

  // `read` reads the words of processes' pages, `find` finds those of permits there; without, no process keeps any.
  Core(Config config, DrawId draw_id, ReadWords read, FindPermitWord find = nullptr);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  // ---- Sessions and their processes (from attach.sock, the kernel and the vault) --------------------------

  // Opens a session; an operator's is bounded by who lets it come alone. Errors: LIMIT.
  absl::StatusOr<SessionId> OpenSession(absl::Time now, const Secret& secret, const Tenant& tenant,
                                        absl::string_view label, const ProcessInfo& opener,
                                        bool of_operator = false);
  // Gives a process a channel of a session. Errors: BAD_CREDENTIALS (unknown session, wrong secret or other
  // tenant: not said which), SESSION_ENDED, LIMIT.
  absl::StatusOr<ChannelId> JoinSession(absl::Time now, SessionId session, const Secret& secret,
                                        const Tenant& tenant, const ProcessInfo& process);
  // `earlier` turns out to be of the same process as `channel`, which joined the same session since `earlier`
  // hung up: its imports pass to `channel`, and it is dropped. Ignored where that is not so.
  void ReplaceChannel(absl::Time now, ChannelId earlier, ChannelId channel, Effects* effects);
  // The lifeline's last holder let go: waiters leave, nothing new is granted; what is held returns as
  // processes are proved gone. Where nothing is held and no process has a connection any more, that is the end.
  void LifelineHungUp(absl::Time now, SessionId session, Effects* effects);
  // The channel's connection ended though the process may live: it gets no more deliveries and may ask
  // nothing more. What it was sent it may have mapped until it is gone.
  void ChannelHungUp(absl::Time now, ChannelId channel, Effects* effects);
  // The process's pidfd says that it is gone: its imports end; with the last process of an ending session,
  // all else.
  void ProcessGone(absl::Time now, ChannelId channel, Effects* effects);
  // The process has every delivery up to `number`. Unknown numbers are ignored.
  void DeliveryAcknowledged(absl::Time now, ChannelId channel, uint64_t number, Effects* effects);
  // The process has unmapped an import of its own. Others' and unknown ones are ignored.
  void ImportLetGo(absl::Time now, ChannelId channel, ImportId import, Effects* effects);
  // The process gives an acquisition of its session's back; `if_idle` as of ReleaseIfIdle(). Errors: NOT_FOUND, which
  // changes nothing.
  absl::StatusOr<ReleaseResult> GiveBack(absl::Time now, ChannelId channel, AcquisitionId acquisition, bool if_idle,
                                         Effects* effects);
  // The process hands over what it has tracked of a block alone. Ignored where it was not asked to.
  void BlockHandedOver(absl::Time now, ChannelId channel, BlockId block, const std::vector<HandedMark>& marks,
                       Effects* effects);

  // ---- Requests ------------------------------------------------------------------------------------------
  //
  // Each ends in exactly one Reply to `call`, now or later. Authentication errors: BAD_CREDENTIALS,
  // SESSION_ENDED, NOT_JOINED. Request errors: REQUEST_REUSED, REQUEST_FORGOTTEN, LIMIT. Others as in
  // proto/berth/v1. Of one request only the latest call waits: an earlier one is answered CANCELLED. A
  // refusal is an answer like any other and is given again to a retry, but for those of UNAVAILABLE, which a
  // retry may overcome.

  void Acquire(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
               const AcquireRequest& request, Effects* effects);
  void AcquireGang(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                   const GangRequest& request, Effects* effects);
  void Release(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
               AcquisitionId acquisition, Effects* effects);
  // Has the process's page delivered, so that it may keep a permit.
  void KeepPermits(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                   const KeepPermitsRequest& request, Effects* effects);
  void ReleaseIfIdle(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                     const ReleaseIfIdleRequest& request, Effects* effects);
  void Allocate(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                const AllocateRequest& request, Effects* effects);
  void Free(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
            const FreeRequest& request, Effects* effects);
  void Publish(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
               const PublishRequest& request, Effects* effects);
  void Unpublish(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                 const UnpublishRequest& request, Effects* effects);
  void Reserve(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
               const ReserveRequest& request, Effects* effects);
  void ReleaseReservation(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                          ReservationId reservation, Effects* effects);
  // Plans: proto/berth/v1/plan.proto.
  void MakePlan(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                const PlanRequest& request, Effects* effects);
  void Replan(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
              const ReplanRequest& request, Effects* effects);
  void ReleasePlan(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag, PlanId plan,
                   Effects* effects);
  void Grant(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
             const GrantRequest& request, Effects* effects);
  void Import(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
              const ImportRequest& request, Effects* effects);
  // Streams and the uses of blocks on them: proto/berth/v1/fence.proto.
  void OpenStream(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                  const OpenStreamRequest& request, Effects* effects);
  void CloseStream(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                   const CloseStreamRequest& request, Effects* effects);
  void PrepareUse(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                  const PrepareUseRequest& request, Effects* effects);
  void FinishUse(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                 const FinishUseRequest& request, Effects* effects);
  void AbandonUse(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                  const AbandonUseRequest& request, Effects* effects);
  // Compiled modules: proto/berth/v1/module.proto.
  void ObtainModule(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                    const ObtainModuleRequest& request, Effects* effects);
  void StoreModule(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                   const StoreModuleRequest& request, Effects* effects);
  void AbandonModule(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                     const AbandonModuleRequest& request, Effects* effects);
  // The block's owner, or an operator, says that it is whole. Errors: DENIED, as for a block that is not there.
  absl::StatusOr<BlockView> ClearTorn(absl::Time now, const Caller& caller, BlockId block, Effects* effects);
  // Settles the channel's request of that sequence, whatever became of it; see
  // berth.v1.SessionService.ForgetRequest.
  void Forget(absl::Time now, CallId call, const Caller& caller, uint64_t sequence, Effects* effects);

  // The call's connection or deadline is gone: it is answered CANCELLED. A waiting request leaves as if it
  // had never come (a retry of the same request queues anew); one whose block is being made goes on, for a
  // retry or a Forget to find. A call that was answered already is ignored.
  void CancelCall(absl::Time now, CallId call, Effects* effects);

  // ---- Workers --------------------------------------------------------------------------------------------

  // The worker made the block, or could not. Where nobody wants it any more it is released again. `handle` is that of a
  // CUDA_IPC block.
  void BlockCreated(absl::Time now, BlockId block, const absl::Status& status, Effects* effects,
                    const IpcHandle& handle = {});
  // The block's memory is back with the driver. A failure keeps the bytes charged.
  void BlockReleased(absl::Time now, BlockId block, const absl::Status& status, Effects* effects);
  // A worker is at what an earlier broker asked: told at first, and with each answer to that, until WorkerUp(). It is
  // to get on as with what this one asks.
  void WorkerAtWork(absl::Time now, uint32_t device, Lane lane, Effects* effects);
  // Nobody has the fd of a block that was made: it is freed, and whoever maps it is asked to let go.
  void BlockLost(absl::Time now, BlockId block, Effects* effects);
  // A worker serves the device (again): blocks that were being made are asked for anew.
  void WorkerUp(absl::Time now, uint32_t device, Lane lane, Effects* effects);
  // The device's driver was read. One that is older than the last is left alone.
  void DeviceRead(absl::Time now, uint32_t device, const DeviceReading& reading, Effects* effects);
  // How the device is, as the monitor says. One that the driver has lost is put out of service, and its generation
  // moves; one that is back goes on probation.
  void DeviceSurveyed(absl::Time now, uint32_t device, const DeviceSurvey& survey, Effects* effects);
  // There is a monitor, which is to say something of each device; or there is none.
  void MonitorUp(absl::Time now, Effects* effects);
  void MonitorDown(absl::Time now, Effects* effects);
  // A device's context worker takes so many bytes of it for itself; 0 where the driver does not say.
  void ContextMeasured(absl::Time now, uint32_t ordinal, Bytes bytes, Effects* effects);
  // A worker of the device died. What it was asked and has not answered is asked of the next one; whoever knows that a
  // block's fd died with it says BlockReleased() after this. `state`: kRebuilding where another follows; kStopped where
  // none does until an operator acts, so that what was being made is refused; kIdle where the next who needs a context
  // worker has it started. With a context worker, unless it is abandoned, went the memory that it made.
  void WorkerDown(absl::Time now, uint32_t device, Lane lane, DeviceState state, Effects* effects);
  // What else the vault says of a worker; before the WorkerUp() or WorkerDown() that it belongs to. A generation that
  // moved makes the blocks of before stale: they stay charged until their owners free them, and nobody imports them any
  // more.
  void ReportDevice(absl::Time now, uint32_t device, Lane lane, const DeviceReport& report, Effects* effects);

  // ---- The keeper of compiled modules ---------------------------------------------------------------------

  // It has this one from an earlier life of the daemon, used before those that are told of later. One that there is no
  // room for is dropped.
  void RestoreModule(absl::Time now, const ModuleRecord& record, Effects* effects);
  // It had so many more that were none any more.
  void NoteCorruptModules(uint64_t count);
  // It has taken the module over, or why not: kInvalidArgument for what is not what it was called.
  void ModuleStored(absl::Time now, ModuleId module, CompileId compile, const absl::Status& status,
                    Effects* effects);
  // It has read the module, or why not: kDataLoss for what is not what it was kept as.
  void ModuleLoaded(absl::Time now, ModuleId module, const absl::Status& status, Effects* effects);

  // ---- Time -----------------------------------------------------------------------------------------------

  // When Tick() is due next; InfiniteFuture for never.
  absl::Time next_deadline() const;
  // Lets waiters whose deadline has passed time out, reservations expire, frees whose uses have ended go on, and has
  // workers ended that hang or are not needed. An early or late call is harmless.
  void Tick(absl::Time now, Effects* effects);
  // The daemon is stopping: everything that waits is answered SHUTTING_DOWN, and so is all that comes.
  void ShutDown(absl::Time now, Effects* effects);

  // ---- Operators ------------------------------------------------------------------------------------------

  // Errors: NOT_FOUND; INVALID_FIELD. Waiters that can never fit any more are answered OVER_CAP.
  absl::StatusOr<PoolView> SetPool(absl::Time now, absl::string_view pool, const PoolChange& change,
                                   Effects* effects);
  // Takes a permit from its holder, whose process is not stopped. Returns: what it was. Errors: NOT_FOUND.
  absl::StatusOr<PermitView> RevokePermit(absl::Time now, PermitId permit, Effects* effects);
  // What tenants may have from now on. What is out past it stays; who waits for what can never be had is refused.
  void SetQuotas(absl::Time now, const QuotaTable& quotas, Effects* effects);
  // Sets a limit and returns the accounts changed. Lowering it below what is charged drains: nothing is revoked,
  // nothing granted until it fits. A session may lower its own; the rest is an admin's. Errors: ADMIN_ONLY; NOT_FOUND
  // (device, session); INVALID_FIELD (a device without a limit); OUT_OF_RANGE (more than the device has); LIMIT.
  absl::StatusOr<std::vector<BudgetView>> SetBudget(absl::Time now, const Caller& caller,
                                                    const SetBudgetRequest& request, Effects* effects);
  // The same for a device's own limit, as the configuration has it now. A device that is not there is left alone.
  void ConfigureBudget(absl::Time now, uint32_t device, Bytes limit, Effects* effects);
  // Asks who maps a block to let go of it, without freeing it; each once. For the block's tenant and operators, as the
  // next. Errors: NOT_FOUND.
  absl::StatusOr<BlockView> Recall(absl::Time now, const Caller& caller, BlockId block, Effects* effects);
  // Frees a live block, whoever of its tenant made it. Errors: NOT_FOUND; STALE.
  absl::StatusOr<BlockView> FreeById(absl::Time now, const Caller& caller, BlockId block, Effects* effects);
  // Has every failed release tried again; answered with a ReapResult when that has ended. Errors: ADMIN_ONLY.
  void Reap(absl::Time now, CallId call, const Caller& caller, Effects* effects);
  // Brings a stopped device back; one that is in service stays as it is. Errors of the seven: NOT_FOUND;
  // DEVICE_STOPPED where the device is gone from the node, or (enable) its last worker is not gone yet.
  absl::StatusOr<DeviceView> EnableDevice(absl::Time now, uint32_t device, Effects* effects);
  // Leases nothing new on the device until it is undrained. Errors: INVALID_FIELD (reason).
  absl::StatusOr<DeviceView> DrainDevice(absl::Time now, uint32_t device, const std::string& reason,
                                         Effects* effects);
  absl::StatusOr<DeviceView> UndrainDevice(absl::Time now, uint32_t device, Effects* effects);
  // Replaces the device's worker: what it was asked is asked of the next. Errors: DEVICE_STOPPED for a stopped device.
  absl::StatusOr<DeviceView> RestartDevice(absl::Time now, uint32_t device, Effects* effects);
  // The same with its context worker, whose memory goes with it. Errors: DEVICE_STOPPED for a stopped one; EXPORT_KIND
  // for a device that has none.
  absl::StatusOr<DeviceView> RestartContext(absl::Time now, uint32_t device, Effects* effects);
  // The device's memory is lost, as after a reset of the card: its generation moves and its worker is replaced.
  absl::StatusOr<DeviceView> ResetDevice(absl::Time now, uint32_t device, Effects* effects);
  // The device is gone from the node: nothing is served from it any more.
  absl::StatusOr<DeviceView> DropDevice(absl::Time now, uint32_t device, Effects* effects);
  // Ends the caller's own session (`session` 0 or its own id), or for an admin any. Errors: NOT_FOUND.
  absl::StatusOr<SessionView> EndSession(absl::Time now, const Caller& caller, SessionId session,
                                         Effects* effects);

  // ---- Looking. A caller sees its own tenant's; an admin everything. --------------------------------------

  // OK if the session, its secret and the connection's tenant fit together; an ending session may still look.
  absl::Status Authenticate(const Caller& caller) const;
  // Errors: NOT_FOUND.
  absl::StatusOr<SessionView> GetSession(const Caller& caller, SessionId session) const;
  // Lists are in the order of keys that never change and never come back, so that pages neither repeat nor miss a row
  // that stays: sessions, permits and blocks oldest first, pools by name.
  Page<SessionView> ListSessions(const Caller& caller, const PageRequest& page = {}) const;
  absl::StatusOr<PoolView> GetPool(absl::string_view pool) const;
  Page<PoolView> ListPools(const PageRequest& page = {}) const;
  // An empty `pool` means all.
  Page<PermitView> ListPermits(const Caller& caller, absl::string_view pool,
                               const PageRequest& page = {}) const;
  // Why the waiter of that number (WaiterView) waits. Errors: NOT_FOUND.
  absl::StatusOr<WaitView> ExplainWait(const Caller& caller, uint64_t waiter) const;
  // In the order of the queue, at most `most`.
  std::vector<WaiterView> ListWaiters(const Caller& caller, absl::string_view pool,
                                      uint64_t most = UINT64_MAX) const;
  Page<BlockView> ListBlocks(const Caller& caller, const PageRequest& page = {}) const;
  // Oldest first.
  Page<StreamView> ListStreams(const Caller& caller, const PageRequest& page = {}) const;
  Page<ReservationView> ListReservations(const Caller& caller, const PageRequest& page = {}) const;
  // Oldest first.
  Page<PlanView> ListPlans(const Caller& caller, const PageRequest& page = {}) const;
  // Errors: NOT_FOUND.
  absl::StatusOr<PlanView> GetPlan(const Caller& caller, PlanId plan) const;
  // The devices' own accounts, then tenants' and sessions' shares, oldest first; on berthd.sock the caller's tenant's.
  Page<BudgetView> ListBudgets(const Caller& caller, const PageRequest& page = {}) const;
  UsageView GetUsage(const Caller& caller) const;
  // Every lease that is out, as its grant was told but for who asked and how long it
  // waited where that is not kept.
  std::vector<LeaseRecord> ListLeases() const;
  // Oldest first.
  Page<ModuleView> ListModules(const Caller& caller, const PageRequest& page = {}) const;
  ModuleUsage GetModuleUsage(const Caller& caller) const;
  std::vector<DeviceView> ListDevices() const;
  // Which devices reach each other over NVLink, by ordinal; without those that are gone.
  std::vector<IslandView> ListIslands() const;
  // Processes that are at a device without a permit, as the last reading had them, by device and pid: the caller's
  // user's.
  std::vector<StrayView> ListStrays(const Caller& caller) const;

  // ---- What outlives the broker (row_kind.h) --------------------------------------------------------------

  // Adds what has changed since the last call. Effects may be carried out once the changes of their step are kept.
  void TakeChanges(RowBatch* changes);
  // All rows as they are now: what the batches so far come to.
  Rows AllRows() const;
  // Goes on from what an earlier broker of this incarnation kept. Called first of all; then the news since is told as
  // at any time (hang-ups, processes that are gone, workers), and then Resume(). Rows of an earlier schema are read as
  // `origin` says, and are others from then on: AllRows() is to be kept in their place. Errors: kDataLoss naming the
  // row; the core is of no use then. Whether all rows go together CheckBooks() says.
  absl::Status Restore(const RowViews& rows, const ArchiveOrigin& origin = {.schema = kRowSchema});
  // What has to be there outside for what was restored.
  Standing WhatStands() const;
  // What was under way goes on: deliveries that were not acknowledged are sent again, what workers may never have heard
  // is asked again. Requests that waited keep their places until their callers are back, or for a while.
  void Resume(absl::Time now, Effects* effects);

  // Checks every invariant of the books (counts against rows, caps, budgets, cross references): OK, or what
  // is broken. After Restore(), and for tests and the simulator; costs time linear in everything held.
  absl::Status CheckBooks() const;
  // Its two halves: that everything is where others say, and that what is kept as a sum is one. Two threads may take
  // one each, at the same time, after Restore() and as long as nobody changes anything.
  absl::Status CheckReferences() const;
  absl::Status CheckSums() const;

 private:
  class Impl;
  friend class ModuleDesk;
  friend class PermitRun;
  friend class PlanRun;
  friend class Step;
  std::unique_ptr<Impl> impl_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_CORE_H_
