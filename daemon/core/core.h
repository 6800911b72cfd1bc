// Core: the broker's state machine. The core decides which requests get permits and blocks, and accounts for all
// holders.
//
// Pure: no clock, no randomness, no threads, no gRPC, no CUDA. Time and ids are arguments; effects are numbered values.
// The same inputs give the same effects, so a seed replays any run (tests/sim). The broker calls the core under its
// lock and carries the effects out in their order afterwards.
//
// Thread-compatible; one caller at a time.

#ifndef DAEMON_CORE_CORE_H_
#define DAEMON_CORE_CORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <berth/bytes.h>
#include <berth/end_notice.h>
#include <berth/ids.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/secret.h"
#include "daemon/base/archive_origin.h"
#include "daemon/base/ledger_record.h"
#include "daemon/core/devices/call_watch.h"
#include "daemon/core/permits/permit_slots.h"
#include "daemon/core/types/block_types.h"
#include "daemon/core/types/budget_types.h"
#include "daemon/core/types/caller.h"
#include "daemon/core/types/device_facts.h"
#include "daemon/core/types/device_types.h"
#include "daemon/core/types/effects.h"
#include "daemon/core/types/fence_types.h"
#include "daemon/core/types/gang_types.h"
#include "daemon/core/types/lease_record.h"
#include "daemon/core/types/limits.h"
#include "daemon/core/types/module_types.h"
#include "daemon/core/types/operator_settings.h"
#include "daemon/core/types/page.h"
#include "daemon/core/types/permit_types.h"
#include "daemon/core/types/plan_types.h"
#include "daemon/core/types/record_kind.h"
#include "daemon/core/types/restored_state.h"
#include "daemon/core/types/session_types.h"
#include "daemon/core/types/tenant_quota.h"

namespace berth::core {

struct Managers;
class StepContext;

// Every limit of the core. A request at a limit is refused with LIMIT, which names the limit; nothing changes.
//
// Each user has a share of a limit on all users together (user_share.h). The `operator_*` field after such a limit is
// what operators may have in addition.
struct Limits {
  // The server bounds operators' sessions at attach.
  uint64_t sessions = 10'000;
  uint64_t channels_per_session = 4'096;
  uint64_t waiters_per_pool = 20'480;
  uint64_t operator_waiters_per_pool = 1'024;
  // Weight of all waiting requests (wait_weight.h).
  Bytes waiting_bytes = MiB(64);
  Bytes operator_waiting_bytes = MiB(4);
  // Waiting processes of one look at their states: a quarter each for those with untaken grants, and for the first
  // waiters of the pools; the rest for others in turn. A look at a process takes the broker some 20 us.
  uint64_t processes_per_look = 256;
  // The fd of each block is open three times (supervisor, broker, importer), so blocks are the first to reach the fd
  // limit.
  uint64_t blocks = 20'480;
  uint64_t operator_blocks = 64;
  uint64_t imports = 65'536;
  uint64_t operator_imports = 256;
  uint64_t imports_per_block = 1'024;
  // Sized for a process that maps half of all blocks, each once.
  uint64_t imports_per_channel = 4'096;
  uint64_t grants_per_block = 256;
  uint64_t grants = 65'536;
  uint64_t names_per_tenant = 1'024;
  // Requests and answers that the client has not settled. Restoring them is most of the cost of a broker crash to other
  // users, so one user's bytes are few.
  AnswerLimits answers;
  Bytes answer_bytes = MiB(16);
  Bytes operator_answer_bytes = MiB(2);
  // Deliveries not yet sent because too many fds are unacknowledged. Recalls are sent past this limit.
  uint64_t queued_deliveries_per_channel = 1'024;
  uint64_t unacknowledged_fds_per_channel = 8;
  uint64_t unacknowledged_fds_per_tenant = 64;
  // Units are reserved for a waiter that others have passed this often; no further waiter passes it.
  uint64_t passes_before_hold = 16;
  // Requests for bytes that wait for a device's worker, for freed bytes to return, or for capacity. At the limit, while
  // the worker is being started, the next request is refused with DEVICE_REBUILDING.
  uint64_t waiting_allocations_per_device = 1'024;
  uint64_t operator_allocations_per_device = 64;
  // Blocks that a worker makes or is to make, and requests for one that wait. This bounds the creates that the broker
  // queues for a worker that makes no progress (device/worker/worker_channel.h).
  uint64_t creates_per_worker = 2'048;
  uint64_t operator_creates_per_worker = 128;
  // Limits on streams and their uses; each limit names itself in the refusal.
  FenceLimits fences;
  // Longest wait of a prepared use for open uses, and of an import for the block's hand-over.
  absl::Duration prepare_patience = absl::Seconds(1);
  // Capacity is reserved for a request for bytes that others have passed this often, for at most `longest_reserve`.
  uint64_t passes_before_reserve = 16;
  absl::Duration longest_reserve = absl::Seconds(5);
  // Time for which a session without a lease waits for its processes to return after the loss of the daemon's sockets,
  // if the daemon's PID namespace does not show them.
  absl::Duration unseen_patience = absl::Seconds(10);
  uint64_t reservations_per_session = 256;
  uint64_t reservations = 20'480;
  uint64_t operator_reservations = 64;
  uint64_t plans_per_session = 256;
  // A plan of 256 tiles takes some 30 KiB.
  uint64_t plans = 4'096;
  uint64_t operator_plans = 64;
  // Tenants with a budget of their own that have no session and no bytes.
  uint64_t detached_tenants = 4'096;
  ModuleLimits modules;
};

struct DeviceConfig {
  uint32_t ordinal = 0;
  std::string uuid;
  std::string name;
  MemoryKind kind = MemoryKind::kHost;
  uint64_t generation = 1;
  // Whether the device offers CUDA_IPC blocks; if not, the reason as text for people. `context_generation` is the
  // generation of the memory that the device's context worker makes.
  bool cuda_ipc = true;
  std::string why_no_cuda_ipc;
  uint64_t context_generation = 0;
  Bytes total;
  Bytes budget;
  Bytes granularity = MiB(2);
  // Whether fences can order the uses of the device's memory.
  bool tracks_fences = true;
  // For permits that name a device (placement.h): bytes that are never granted, and bytes that a process takes for its
  // context. `measure_context`: a context worker's measurement replaces `context`. `others`: bytes that other processes
  // held when the daemon started.
  Bytes permit_reserve;
  Bytes context;
  bool measure_context = false;
  Bytes others;
  // For display only; the supervisor acts on the result.
  MemoryScrubCheck scrub;
  DeviceFacts facts;
};

struct Config {
  uint64_t node = 0;
  uint64_t incarnation = 0;
  uint64_t epoch = 1;
  std::vector<PoolConfig> pools;
  std::vector<DeviceConfig> devices;
  // Limits of every tenant and session on every device, unless one is set explicitly; empty: only the outer layers
  // limit.
  std::optional<Bytes> tenant_budget;
  std::optional<Bytes> session_budget;
  // Blocks made ahead per device and size once that size was requested; 0 for none.
  uint32_t warm_blocks_per_size = 2;
  // Delay of a refill of the warm cache after a block was taken, so that refills do not slow a burst of requests. The
  // refill is immediate when less than a quarter is left.
  absl::Duration warm_refill_delay = absl::Milliseconds(10);
  // Longest driver call of a worker before the broker considers the worker hung.
  CallLimits calls;
  // Idle time before an unneeded context worker ends: starting one takes 0.3 s, an idle one holds 0.5 GiB of the
  // device.
  absl::Duration context_idle = absl::Seconds(30);
  // Sizes (per device, most recently requested first) that the warm cache covers, and its largest share of the budget.
  uint32_t warm_sizes = 4;
  Bytes warm_limit = GiB(1);
  // Whether the log includes the uses of shared blocks: several records for each launch.
  bool log_fences = false;
  Limits limits;
  QuotaTable quotas;
};

class Core {
 public:
  // Draws ids that are unguessable and never repeat: sessions, channels and blocks.
  using DrawId = std::function<uint64_t()>;

  // `read` reads the fence values of processes' pages; `find` finds their permit slots, `find_take_up` their words for
  // grants. Without `find`, no process caches a permit; without `find_take_up`, every grant is final.
  Core(Config config, DrawId draw_id, ReadFenceValues read, FindPermitSlot find = nullptr,
       FindTakeUpWords find_take_up = nullptr);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  // ---- Sessions and their processes (from attach.sock, the kernel and the supervisor) ---------------------

  // Opens a session; the caller bounds operators' sessions. Errors: LIMIT.
  absl::StatusOr<SessionId> OpenSession(absl::Time now, const Secret& secret, const Tenant& tenant,
                                        absl::string_view label, const ProcessInfo& opener,
                                        bool of_operator = false);
  // Gives a process a channel of a session. Errors: SESSION_ENDED, also for an unknown session and a wrong secret;
  // BAD_CREDENTIALS (the session of another tenant, with its secret); LIMIT.
  absl::StatusOr<ChannelId> JoinSession(absl::Time now, SessionId session, const Secret& secret,
                                        const Tenant& tenant, const ProcessInfo& process);
  // Records the inode of the session's credentials. Ignored for an unknown session.
  void RecordSessionCredentials(absl::Time now, SessionId session, uint64_t inode);
  // Sessions and processes that outlived the loss of the daemon's sockets. The sessions continue without a lifeline:
  // the caller finds their holders, and calls LifelineHungUp() when there are none. Nothing shows the holders of the
  // `unseen` sessions, which are also in `sessions`: their openers have pid 0 from now on. Those of them that are
  // `awaited` have no lifeline: EndIfUnused() applies to them, too. The processes continue without their connections:
  // their streams end, and their cached permits count as held. Nothing proves the end of the `unproven` processes,
  // which have pid 0 from now on.
  struct Detached {
    std::vector<SessionId> sessions;
    std::vector<SessionId> unseen;
    std::vector<SessionId> awaited;
    std::vector<ChannelId> processes;
    std::vector<ChannelId> unproven;
  };
  void Detach(absl::Time now, const Detached& detached, Effects* effects);
  // Ends a session whose holders nothing shows, unless it has a permit or reservation, or a connected process: what
  // such a holder has must stay counted. Processes whose end nothing proves have Limits::unseen_patience to return, and
  // their blocks, imports and plans stay counted, too. Ignored for an unknown session.
  void EndIfUnused(absl::Time now, SessionId session, Effects* effects);
  // The session's lifeline is connected again: EndIfUnused() applies no more.
  void LifelineRejoined(absl::Time now, SessionId session, Effects* effects);
  // Returns OK if a process may reconnect its channel (or, with channel 0, the session's lifeline). Errors:
  // BAD_CREDENTIALS (unknown session, wrong secret or other tenant: the answer does not say which), SESSION_ENDED,
  // NOT_JOINED (the channel has hung up, or belongs to another session).
  absl::Status CheckRejoin(SessionId session, const Secret& secret, const Tenant& tenant, ChannelId channel) const;
  // The channel is connected again: sends its process's unacknowledged deliveries. From now on a pidfd proves the end
  // of the process.
  void Rejoined(absl::Time now, ChannelId channel, Effects* effects);
  // Merges each channel of `earlier` into `channel`: both belong to one process, which joined the same session again
  // after the earlier one hung up. The imports of the earlier channel move to `channel`, and it is dropped. Ignores
  // each one for which these conditions do not hold, and each one that has open work.
  void ReplaceChannels(absl::Time now, std::span<const ChannelId> earlier, ChannelId channel, Effects* effects);
  // The last holder of the lifeline closed it: waiters leave, and nothing new is granted. Held resources return as the
  // processes are proved gone. The session ends at once where it holds nothing and no process is connected. `why` is
  // the reason that the processes receive.
  void LifelineHungUp(absl::Time now, SessionId session, Effects* effects,
                      EndReason why = EndReason::kLifelineClosed);
  // The processes of these channels are stopped: their waiting requests are skipped and answered with PROCESS_STOPPED,
  // and grants that they have not taken up are withdrawn. A process that continues retries its requests.
  void ProcessesStopped(absl::Time now, const std::vector<ChannelId>& channels, Effects* effects);
  // The channel's connection ended though the process may live: it gets no more deliveries and may request nothing
  // more. Blocks already sent to it count as mapped until the process is gone.
  void ChannelHungUp(absl::Time now, ChannelId channel, Effects* effects);
  // The process's pidfd reports its end: its imports end. With the last process of an ending session, everything else
  // ends.
  void ProcessGone(absl::Time now, ChannelId channel, Effects* effects);
  // The process has received every delivery up to `number`. Unknown numbers are ignored.
  void DeliveryAcknowledged(absl::Time now, ChannelId channel, uint64_t number, Effects* effects);
  // The process has unmapped an import of its own. Other channels' imports and unknown ids are ignored.
  void ImportLetGo(absl::Time now, ChannelId channel, ImportId import, Effects* effects);
  // The process releases an acquisition of its session; `if_idle` as in ReleaseIfIdle(). Errors: NOT_FOUND, which
  // changes nothing.
  absl::StatusOr<ReleaseResult> GiveBack(absl::Time now, ChannelId channel, AcquisitionId acquisition, bool if_idle,
                                         Effects* effects);
  // The process hands over the fence marks of a block that it tracked alone. Ignored unless the core asked for the
  // hand-over.
  void BlockHandedOver(absl::Time now, ChannelId channel, BlockId block, const std::vector<HandedMark>& marks,
                       Effects* effects);

  // ---- Requests ------------------------------------------------------------------------------------------
  //
  // Each request ends in exactly one Reply to `call`, now or later. Authentication errors: BAD_CREDENTIALS,
  // SESSION_ENDED, NOT_JOINED. Request errors: REQUEST_REUSED, REQUEST_FORGOTTEN, LIMIT. Others as in proto/berth/v1.
  // Only the latest call of a request waits: an earlier call is answered CANCELLED. A retry receives the same refusal
  // again, like any other answer. UNAVAILABLE refusals are not cached, because a retry may overcome them.

  void Acquire(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
               const AcquireRequest& request, Effects* effects);
  void AcquireGang(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
                   const GangRequest& request, Effects* effects);
  void Release(absl::Time now, CallId call, const Caller& caller, const RequestTag& tag,
               AcquisitionId acquisition, Effects* effects);
  // Has the process's page delivered, so that the process may cache a permit.
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
  // Marks a block as consistent, for its owner or an operator. Errors: DENIED, also for a block that does not exist.
  absl::StatusOr<BlockView> ClearTorn(absl::Time now, const Caller& caller, BlockId block, Effects* effects);
  // Settles the channel's request of that sequence, whatever its outcome; see berth.v1.SessionService.ForgetRequest.
  void Forget(absl::Time now, CallId call, const Caller& caller, uint64_t sequence, Effects* effects);

  // The call's connection or deadline ended: the call is answered CANCELLED. A waiting request leaves without a trace
  // (a retry of the same request queues again). A request whose block is being made continues, for a retry or a Forget
  // to find. An answered call is ignored.
  void CancelCall(absl::Time now, CallId call, Effects* effects);

  // ---- Workers --------------------------------------------------------------------------------------------

  // The worker made the block, or could not. An unwanted block is released. `handle` is the handle of a CUDA_IPC
  // block.
  void BlockCreated(absl::Time now, BlockId block, const absl::Status& status, Effects* effects,
                    const IpcHandle& handle = {});
  // The driver has taken the block's memory back. After a failure the bytes stay charged.
  void BlockReleased(absl::Time now, BlockId block, const absl::Status& status, Effects* effects);
  // A worker processes commands of an earlier broker. Called at the start and with each answer to those commands, until
  // WorkerUp(). The deadlines of driver calls then apply as for this broker's commands.
  void WorkerAtWork(absl::Time now, uint32_t device, WorkerKind worker_kind, Effects* effects);
  // No process has the fd of a block that was made: the block is freed and its importers are recalled.
  void BlockLost(absl::Time now, BlockId block, Effects* effects);
  // A worker serves the device (again): the commands for blocks being created are sent again.
  void WorkerUp(absl::Time now, uint32_t device, WorkerKind worker_kind, Effects* effects);
  // Takes a reading of the device's driver. A reading older than the last is ignored.
  void DeviceRead(absl::Time now, uint32_t device, const DeviceReading& reading, Effects* effects);
  // Takes the monitor's report on a device. A device that the driver has lost goes out of service, and its generation
  // rises. A device that returns goes on probation.
  void DeviceSurveyed(absl::Time now, uint32_t device, const DeviceSurvey& survey, Effects* effects);
  // The monitor is up, and its reports on each device are due; or it is down.
  void MonitorUp(absl::Time now, Effects* effects);
  void MonitorDown(absl::Time now, Effects* effects);
  // A device's context worker takes `bytes` of the device for itself; 0 where the driver does not report it.
  void ContextMeasured(absl::Time now, uint32_t ordinal, Bytes bytes, Effects* effects);
  // A worker of the device died; the next worker gets its unanswered commands. A caller that knows that a block's fd
  // died with the worker calls BlockReleased() afterwards. `state` is kRebuilding where a new worker follows. kStopped:
  // none follows until an operator acts, so requests for blocks being created are refused. kIdle: the next request for
  // a context worker has one started. The memory that a context worker made is lost with it, unless the worker is
  // abandoned.
  void WorkerDown(absl::Time now, uint32_t device, WorkerKind worker_kind, DeviceState state, Effects* effects);
  // Takes the supervisor's report on a worker, before the WorkerUp() or WorkerDown() that it belongs to. A higher
  // generation makes earlier blocks stale: they stay charged until their owners free them, and can no longer be
  // imported.
  void ReportDevice(absl::Time now, uint32_t device, WorkerKind worker_kind, const DeviceReport& report,
                    Effects* effects);

  // ---- The store of compiled modules ----------------------------------------------------------------------

  // The store has this module from an earlier run of the daemon; modules are restored least recently used first. A
  // module that exceeds the capacity is dropped.
  void RestoreModule(absl::Time now, const ModuleRecord& record, Effects* effects);
  // The store found and discarded `count` further modules as corrupt.
  void RecordCorruptModules(uint64_t count);
  // The store has taken the module over, or failed: kInvalidArgument where the content does not match the
  // announced digest.
  void ModuleStored(absl::Time now, ModuleId module, CompileId compile, const absl::Status& status,
                    Effects* effects);
  // The store has read the module, or failed: kDataLoss where the content differs from what was stored.
  void ModuleLoaded(absl::Time now, ModuleId module, const absl::Status& status, Effects* effects);

  // ---- Time -----------------------------------------------------------------------------------------------

  // Returns the time when Tick() is due next; InfiniteFuture for never.
  absl::Time next_deadline() const;
  // Expires waiters and reservations, resumes frees whose uses have ended, and requests the end of workers that hang or
  // are not needed. An early or late call is harmless.
  void Tick(absl::Time now, Effects* effects);
  // Grants no permit from now on. Answers `call`, an operator's, once no permit is out and no session owns a live
  // block, or at `deadline`. The daemon then stops. Cancelling the call before that resumes grants.
  void DrainToStop(absl::Time now, CallId call, const Caller& caller, absl::Time deadline, Effects* effects);
  // The daemon is stopping: every waiting and every further request is answered SHUTTING_DOWN.
  void ShutDown(absl::Time now, Effects* effects);

  // ---- Operators ------------------------------------------------------------------------------------------

  // Lists the settings that operators made and did not revert, without sessions' budgets, which end with their
  // sessions.
  OperatorSettings ListOperatorSettings() const;
  // Errors: NOT_FOUND (pool, device); INVALID_FIELD. Waiters that can never fit any more are answered OVER_CAP.
  absl::StatusOr<PoolView> SetPool(absl::Time now, absl::string_view pool, const PoolChange& change,
                                   Effects* effects);
  // Takes a permit from its holder, whose process continues. Returns the permit as it was. Errors: NOT_FOUND.
  absl::StatusOr<PermitView> RevokePermit(absl::Time now, PermitId permit, Effects* effects, uint32_t by_uid = 0);
  // Sets the tenants' quotas from now on. Grants above a quota stay; a waiter whose request can never be granted is
  // refused.
  void SetQuotas(absl::Time now, const QuotaTable& quotas, Effects* effects);
  // Sets a limit and returns the changed accounts. A limit below the charged bytes drains: nothing is revoked, and
  // nothing is granted until it fits. A session may lower its own limit; all other changes need an admin. Errors:
  // ADMIN_ONLY; NOT_FOUND (device, session); OUT_OF_RANGE (more than the device has); LIMIT.
  absl::StatusOr<std::vector<BudgetView>> SetBudget(absl::Time now, const Caller& caller,
                                                    SetBudgetRequest request, Effects* effects);
  // Restores a device's or a tenant's limit that an operator set earlier. Errors: NOT_FOUND; OUT_OF_RANGE; LIMIT.
  absl::Status RestoreBudget(absl::Time now, const SetBudgetRequest& request, Effects* effects);
  // Applies a device's own limit from the current configuration. An unknown device is ignored.
  void ConfigureBudget(absl::Time now, uint32_t device, Bytes limit, Effects* effects);
  // Asks every importer of a block to unmap it, each once, without freeing the block. Recall() and FreeById() are for
  // the block's tenant and for operators. Errors: NOT_FOUND.
  absl::StatusOr<BlockView> Recall(absl::Time now, const Caller& caller, BlockId block, Effects* effects);
  // Frees a live block, whichever process of its tenant made it. Errors: NOT_FOUND; STALE.
  absl::StatusOr<BlockView> FreeById(absl::Time now, const Caller& caller, BlockId block, Effects* effects);
  // Retries every failed release; answers with a ReapResult when the retries have ended. Errors: ADMIN_ONLY.
  void Reap(absl::Time now, CallId call, const Caller& caller, Effects* effects);
  // Returns a stopped device to service; a device in service is unchanged. Errors of the seven device verbs: NOT_FOUND;
  // DEVICE_STOPPED where the device is gone from the node, or (enable) its last worker is still ending.
  absl::StatusOr<DeviceView> EnableDevice(absl::Time now, uint32_t device, Effects* effects);
  // Leases nothing new on the device until it is undrained. Errors: INVALID_FIELD (reason).
  absl::StatusOr<DeviceView> DrainDevice(absl::Time now, uint32_t device, const std::string& reason,
                                         Effects* effects);
  absl::StatusOr<DeviceView> UndrainDevice(absl::Time now, uint32_t device, Effects* effects);
  // Replaces the device's worker; the next worker gets its unanswered commands. Errors: DEVICE_STOPPED for a stopped
  // device.
  absl::StatusOr<DeviceView> RestartDevice(absl::Time now, uint32_t device, Effects* effects);
  // Replaces the device's context worker; its memory is lost. Errors: DEVICE_STOPPED for a stopped device; EXPORT_KIND
  // for a device that has no context worker.
  absl::StatusOr<DeviceView> RestartContext(absl::Time now, uint32_t device, Effects* effects);
  // The device's memory is lost, as after a reset of the card: its generation rises and its worker is replaced.
  absl::StatusOr<DeviceView> ResetDevice(absl::Time now, uint32_t device, Effects* effects);
  // The device is gone from the node: nothing is served from it any more.
  absl::StatusOr<DeviceView> DropDevice(absl::Time now, uint32_t device, Effects* effects);
  // Ends the caller's own session (`session` 0 or its own id), or for an admin any session. Errors: NOT_FOUND.
  absl::StatusOr<SessionView> EndSession(absl::Time now, const Caller& caller, SessionId session,
                                         Effects* effects);

  // ---- Queries. A caller sees its own tenant's objects; an admin all objects. -----------------------------

  // Returns OK if the session, its secret and the connection's tenant match; also for an ending session.
  absl::Status Authenticate(const Caller& caller) const;
  // Errors: NOT_FOUND.
  absl::StatusOr<SessionView> GetSession(const Caller& caller, SessionId session) const;
  // Lists are in the order of keys that never change or repeat, so pages neither repeat nor miss a lasting entry:
  // sessions, permits and blocks oldest first, pools by name.
  Page<SessionView> ListSessions(const Caller& caller, const PageRequest& page = {}) const;
  // Counts what is leased on the whole node.
  OutCounts CountOut() const;
  // Returns whether a call of DrainToStop() waits or was answered: no permit is granted.
  bool stopping() const;
  absl::StatusOr<PoolView> GetPool(absl::string_view pool) const;
  Page<PoolView> ListPools(const PageRequest& page = {}) const;
  // Count the evaluations of permit waiters, and the gauges read to find waiters, so far: measures of the steps' cost.
  uint64_t CountJudged() const;
  uint64_t CountGaugesRead() const;
  // An empty `pool` means all.
  Page<PermitView> ListPermits(const Caller& caller, absl::string_view pool,
                               const PageRequest& page = {}) const;
  // Explains why the waiter of that number (WaiterView) waits. Errors: NOT_FOUND.
  absl::StatusOr<WaitView> ExplainWait(const Caller& caller, uint64_t waiter) const;
  // Returns the number of the waiter of the caller's request `sequence`; nullopt if the request waits in no pool.
  std::optional<uint64_t> FindWaiter(const Caller& caller, uint64_t sequence) const;
  // Lists waiters in queue order, at most `most`.
  std::vector<WaiterView> ListWaiters(const Caller& caller, absl::string_view pool,
                                      uint64_t most = UINT64_MAX) const;
  // Counts what ListPermits() and ListWaiters() list without a limit.
  PermitCounts CountPermits(const Caller& caller, absl::string_view pool) const;
  Page<BlockView> ListBlocks(const Caller& caller, const PageRequest& page = {}) const;
  // Oldest first.
  Page<StreamView> ListStreams(const Caller& caller, const PageRequest& page = {}) const;
  Page<ReservationView> ListReservations(const Caller& caller, const PageRequest& page = {}) const;
  // Oldest first.
  Page<PlanView> ListPlans(const Caller& caller, const PageRequest& page = {}) const;
  // Errors: NOT_FOUND.
  absl::StatusOr<PlanView> GetPlan(const Caller& caller, PlanId plan) const;
  // The devices' own accounts, then tenants' and sessions' shares, oldest first; on berthd.sock only the caller's
  // tenant's.
  Page<BudgetView> ListBudgets(const Caller& caller, const PageRequest& page = {}) const;
  UsageView GetUsage(const Caller& caller) const;
  // Lists every open lease as reported at its grant. The requester and the waiting time are missing where they are not
  // persisted.
  std::vector<LeaseRecord> ListLeases() const;
  // Oldest first.
  Page<ModuleView> ListModules(const Caller& caller, const PageRequest& page = {}) const;
  ModuleUsage GetModuleUsage(const Caller& caller) const;
  std::vector<DeviceView> ListDevices() const;
  // Lists the NVLink islands (devices that reach each other over NVLink), by ordinal, without dropped devices.
  std::vector<IslandView> ListIslands() const;
  // Lists the caller's user's processes that use a device without a permit, from the last reading, by device and pid.
  std::vector<StrayView> ListStrays(const Caller& caller) const;

  // ---- State that outlives the broker (record_kind.h) -----------------------------------------------------

  // Adds the changes since the last call. The caller may carry out a step's effects once its changes are persisted.
  void TakeChanges(RecordBatch* changes);
  // Returns all ledger records as of now: the sum of the batches so far.
  LedgerRecords AllRecords() const;
  // Checks that the records belong to the core's devices. Errors: kFailedPrecondition naming the first that differs.
  absl::Status CheckDevices(const RecordViews& records, const ArchiveOrigin& origin = {.schema = kRecordSchema}) const;
  // Restores what an earlier broker of this incarnation persisted. Called first of all; then the caller reports later
  // events as usual (hang-ups, ended processes, workers), and then calls Resume(). Records of an earlier schema are
  // read as `origin` says and change form: the caller persists AllRecords() in their place. Errors: kDataLoss naming
  // the record; the core is unusable then. CheckInvariants() checks that all records are consistent.
  absl::Status Restore(const RecordViews& records, const ArchiveOrigin& origin = {.schema = kRecordSchema});
  // Returns what must exist outside the core for the restored state.
  RestoredState WhatStands() const;
  // Resumes what was under way: resends unacknowledged deliveries and repeats commands that workers may not have
  // received. Waiting requests retain their places until their callers reconnect, or until a grace period ends.
  void Resume(absl::Time now, Effects* effects);

  // Checks every invariant (counts against records, caps, budgets, cross references). Returns OK, or the violation.
  // Called after Restore(), and by tests and the simulator; costs time linear in everything held.
  absl::Status CheckInvariants() const;
  // The two halves of CheckInvariants(): cross references, and stored sums against their parts. Two threads may run one
  // each at the same time, after Restore() and while nothing changes the core.
  absl::Status CheckReferences() const;
  absl::Status CheckSums() const;

 private:
  template <typename Event>
  auto Run(absl::Time now, Effects* effects, const Event& event);
  // Ends a step: serves waiters while the step has changed what they wait for, in this order: bytes, gangs' bytes,
  // permits, plans.
  void Settle(StepContext& step);

  const std::unique_ptr<Managers> managers_;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_CORE_H_
