// Simulation: a node's whole life around the core, without a process or a thread. Clients do everything that clients
// can do, correctly and incorrectly; kernels kill them in any order; workers work, fail and die; operators act; time
// passes. A seed determines everything, so that a seed replays any run.
//
// The model beside the core records which client got which object by the core's effects, and compares after every step.
// The first violation ends the run; status() names it with its step.

#ifndef TESTS_SIM_SIMULATION_H_
#define TESTS_SIM_SIMULATION_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/wire/permit_slot.h"
#include "common/wire/take_up.h"
#include "daemon/base/ledger_record.h"
#include "daemon/core/core.h"
#include "tests/sim/alone_uses.h"
#include "tests/sim/effect_digest.h"
#include "tests/sim/indexed_map.h"
#include "tests/sim/module_model.h"

namespace berth::core {

class Simulation {
 public:
  struct Options {
    uint64_t seed = 1;
    // Most sessions open at a time.
    uint64_t sessions = 30;
    uint64_t channels_per_session = 4;
    // Steps between two checks of all invariants, whose cost is linear in the number of held objects.
    uint64_t check_every = 8;
    // Steps between two comparisons of the persisted records with the state.
    uint64_t check_records_every = 32;
    // The broker dies sometimes: before a step is persisted, or after any of the effects of several steps.
    bool restarts = false;
    // The whole daemon sometimes stops and starts (losses.cc).
    bool stops = false;
    // Processes stop and continue at any moment, and take their grants up (pauses.cc). Requires: no `stops`.
    bool pauses = false;
    // Clients request only permits and plans.
    bool only_permits = false;
    // Limits are wide and no tenant has a quota, whatever the seed.
    bool wide = false;
    // Receives every effect and every change of a record; null for none.
    EffectDigest* digest = nullptr;
  };

  explicit Simulation(const Options& options);

  // Opens `sessions` sessions with a process each. Requires: wide limits.
  void Crowd(uint64_t sessions);
  // Takes `steps` steps, or fewer if one violates a guarantee.
  void Run(uint64_t steps);
  // Takes steps until `duration` of simulated time has passed.
  void RunFor(absl::Duration duration);
  // Kills all clients in some order, lets the workers finish, and expects every unit and byte back.
  void Finish();

  const absl::Status& status() const { return status_; }
  // Number of processes.
  size_t processes() const { return processes_.size(); }
  uint64_t steps() const { return step_; }
  // Counts of events, to show that a run is not idle.
  struct Counts {
    uint64_t sessions = 0, grants = 0, nested = 0, gangs = 0, notified_revoked = 0;
    // Plans made, made anew, with units that moved, and reported as stale.
    uint64_t plans = 0, replans = 0, moves = 0, notified_stale = 0;
    uint64_t allocations = 0, imports = 0, undone = 0, replayed = 0;
    uint64_t quarantined = 0, worker_deaths = 0, reservations = 0, drawn = 0, published = 0, replaced = 0;
    uint64_t hung_workers = 0, abandoned_workers = 0, enabled_devices = 0, resets = 0;
    uint64_t drained = 0, lost_devices = 0, picked = 0, quotas = 0, readings = 0, cleared = 0, explained = 0;
    // Context workers: started, and ended because unused; blocks whose memory was lost with one.
    uint64_t contexts = 0, idle_contexts = 0, lost_blocks = 0;
    // Channels that joined again, and channels of processes that outlived their session.
    uint64_t rejoined = 0, left_alive = 0;
    // Uses that waited for a fence value, that finished, and that got a report of a torn block; hand-overs.
    uint64_t waits = 0, finished = 0, torn = 0, handed_over = 0;
    // Launches that waited for a handed-over use; and those that were told of a block torn by its only process.
    uint64_t handed_waits = 0, torn_alone = 0;
    // Compiled modules: delivered, granted for compilation, and found corrupt.
    uint64_t modules = 0, rights_to_compile = 0, corrupt_modules = 0;
    // Brokers that died; those with an unpersisted step; requests that waited then; lost answers and deliveries.
    uint64_t restarts = 0, lost_steps = 0, waited_on = 0, lost_answers = 0, lost_deliveries = 0;
    // Lost: jobs of workers; fds to store or to remove; commands about devices; work of the module store.
    uint64_t lost_jobs = 0, lost_fd_changes = 0, lost_commands = 0, lost_module_work = 0;
    // Cached permits that were taken again without the daemon; those among them without a broker; and permits taken
    // back.
    uint64_t taken_again = 0, taken_in_between = 0, taken_back = 0;
    // Leases whose end only the next broker saw, and messages of processes that two brokers received.
    uint64_t unseen = 0, heard_again = 0;
    uint64_t dropped_devices = 0, expired = 0;
    // Stops and starts; processes that reconnected after one, that were refused because the session had ended, that
    // ended unseen, and that an operator declared ended; blocks lost.
    uint64_t stops = 0, resumed = 0, not_resumed = 0, ghosts = 0, given_up = 0, blocks_gone = 0;
    // Processes that stopped; requests that were skipped; grants that were withdrawn.
    uint64_t paused = 0, skipped = 0, withdrawn = 0;
    // By reason; LIMIT by the limited resource.
    std::map<std::string, uint64_t> refusals;
  };
  const Counts& counts() const { return counts_; }

 private:
  using Payload =
      std::variant<AcquireRequest, AcquisitionId, AllocateRequest, FreeRequest, GrantRequest, ImportRequest,
                   OpenStreamRequest, CloseStreamRequest, PrepareUseRequest, FinishUseRequest, AbandonUseRequest,
                   ReserveRequest, ReservationId, PublishRequest, UnpublishRequest, GangRequest, PlanRequest,
                   ReplanRequest, PlanId, ObtainModuleRequest, StoreModuleRequest, AbandonModuleRequest,
                   KeepPermitsRequest, ReleaseIfIdleRequest>;

  struct Request {
    Payload payload;
    // Deadline of an earlier attempt, where that attempt had another one.
    absl::Time earlier_deadline = absl::InfiniteFuture();
    uint64_t answered_below = 0;
    // The first answer, which a repeat must get again.
    std::optional<absl::StatusOr<Response>> first;
    // The client knows the outcome.
    bool settled = false;
    // Whether the request reached the daemon.
    bool sent = false;
    bool forgotten = false;
    // The process has asked to forget it.
    bool given_up = false;
    // The request was sent to an earlier daemon, whose memory no longer exists.
    bool of_earlier = false;
  };
  struct Process {
    SessionId session;
    uint64_t last_sequence = 0;
    std::map<uint64_t, Request> requests;
    bool hung_up = false;
    // The process is stopped; and the grants whose answers it has not read.
    bool stopped = false;
    std::set<uint64_t> unread;
    uint64_t last_delivery = 0;
    uint64_t acknowledged = 0;
    std::set<uint64_t> fds_under_way;
    // Number of the delivery of its own page, 0 before, and whether it has acknowledged that.
    uint64_t own_page = 0;
    bool mapped_own_page = false;
    // Fds that the process received and has not released.
    std::map<ImportId, BlockId> mapped;
    // The imports whose fd the process can write, and those that it declared read-only.
    std::set<ImportId> writable;
    std::set<ImportId> read_only;
    bool Writes(ImportId import) const { return writable.contains(import) && !read_only.contains(import); }
    // Slots that the process knows, and uses that it has begun on them.
    std::set<uint32_t> streams;
    std::map<UseId, PrepareUseRequest> uses;
    // Blocks that the process was asked to hand over.
    std::set<BlockId> wanted;
    // Channels whose pages the process received.
    std::set<ChannelId> pages;
    // The process knows its page's permit slot, caches that permit, and uses it.
    bool keeps = false;
    std::optional<AcquireResult> cached;
    bool in_use = false;
    // The process has put back a permit that a waiter needs, and has not notified the daemon yet.
    bool owes_look = false;
    // The process has joined again: the channel that replaces this one.
    ChannelId replaced_by;
    // A stop took its socket, and the process has not rejoined; and the daemon cannot see its end.
    bool away = false;
    bool unproven = false;
    // Imports that the process released meanwhile.
    std::vector<ImportId> unsaid;
    // Deliveries of memory were dropped meanwhile: the next number may skip some.
    bool may_skip = false;
  };
  struct Client {
    Secret secret;
    Tenant tenant;
    bool ended = false;
    // The lifeline is closed, which every broker sees.
    bool hung_up = false;
    // The program stores no session credentials.
    bool no_credentials = false;
    // A stop took its lifeline. The daemon searches for its holders before it counts them as missing.
    bool detached = false;
    bool unsaid_end = false;
    std::vector<AcquisitionId> acquisitions;
    std::vector<BlockHandle> blocks;
    std::vector<ReservationId> reservations;
    std::vector<PlanId> plans;
  };
  struct Call {
    ChannelId channel;
    uint64_t sequence = 0;
    bool forget = false;
    bool reused = false;
  };
  struct Job {
    BlockId block;
    // The size to allocate; empty for a release.
    std::optional<Bytes> create;
  };
  struct Worker {
    DeviceState state = DeviceState::kRebuilding;
    std::deque<Job> jobs;
    // The driver's allocation, with its generation.
    struct Memory {
      Bytes bytes;
      uint64_t generation = 0;
    };
    std::map<BlockId, Memory> made;
    // Blocks that it could not release.
    std::set<BlockId> stuck;
    // The worker does nothing any more, and does not answer.
    bool hung = false;
    // The worker was killed, and has not ended.
    bool abandoned = false;
    // The worker is busy with an earlier broker's requests.
    bool behind = false;
    // The device was removed from the node.
    bool dropped = false;
    // The core's commands that the supervisor has not carried out yet.
    std::deque<WorkerCommand> commands;
    uint64_t generation = 1;
    // For a context worker: its end is already reported.
    bool over = true;
  };
  // One of a device's workers.
  using WorkerKey = std::pair<uint32_t, WorkerKind>;

  // ---- simulation.cc: steps, effects, checks --------------------------------------------------------------
  void Step();
  void Act();
  void Apply();
  void ApplyEffect(const Effect& effect);
  // Adds the effects from `begin` to Options::digest.
  void Digest(size_t begin, size_t end);
  void ApplyDeliver(const Deliver& deliver);
  // Whether the values of the channel's page may be read: the page exists, or has not been written to yet.
  bool MayRead(ChannelId channel) const;
  // Whether it can receive commands.
  bool IsThere(const Worker& worker);
  void ApplyRelease(const ReleaseBlock& release);
  void ApplyDropChannel(ChannelId channel);
  void ApplyPage(Process& process, const Deliver& deliver);
  void ApplyDropPage(ChannelId channel);
  void ApplyDropSession(SessionId session);
  void ApplyCommand(const SendWorkerCommand& command);
  void Check();
  void CheckPools();
  void CheckDevices();
  // ---- quotas.cc: no tenant exceeds its quota, except by what it had when the quota was lowered ---------------
  void ChangeQuotas();
  void CheckQuotas();
  void DeletePublished(const Caller& caller);
  void CheckNames();
  void AsOperator(const std::function<void(const Caller&)>& act);
  void Fail(const std::string& what);

  // ---- restarts.cc: what outlives the broker ---------------------------------------------------------------
  std::unique_ptr<Core> NewCore();
  // Persists the changes of the last steps, and runs the actions that depend on that.
  void Persist();
  // Runs `then` once the step's change is persisted, if it ever is.
  void OncePersisted(std::function<void()> then) { once_persisted_.push_back(std::move(then)); }
  void RecordLease(const LeaseRecord& lease);
  // Records permits that were held for too long, from those effects of a step.
  void RecordExpired(size_t begin, size_t end);
  void CheckLeases();
  void CheckRecords();
  // Takes some steps whose effects reach no process, the last of which may not be persisted. The broker dies, and
  // another one follows.
  void Restart();
  void TakeUncarriedSteps();
  // Acts after a step when no more effects are carried out.
  void ActSafely();
  // Clears the messages and openings recorded in the last act.
  void BeginAct();
  // Carries out some of the effects in their order. The rest is lost.
  void LoseEffects();
  void LoseEffect(const Effect& effect);
  // Events while there is no broker.
  void PassBrokerless();
  // The next broker reads the persisted records; `unnotified`: permit slots show unpersisted changes.
  void Restore(bool unnotified);
  // Compares the restored core with the simulation's account. Until settling_ is reset, the account follows the core.
  RestoredState MatchRestored();
  // Expects its sessions and processes to be the existing ones, except for unreported changes.
  void MatchSessions(const RestoredState& restored_state);
  void MatchProcesses(const RestoredState& restored_state);
  // Expects the leases open in the history to be the granted ones.
  void MatchLeases();
  void TakeUpModules();
  void NotifyLosses(const RestoredState& restored_state);
  // Releases stored pages that no process's record refers to.
  void LetPagesGo(const RestoredState& restored_state);
  // The worker carries out the previous broker's requests, without a report.
  void CatchUp(Worker& worker);
  void NotifyWorkers();
  // Clients repeat their unanswered requests.
  void AskAgain();

  // ---- losses.cc: what outlives the whole daemon ------------------------------------------------------------
  // As Restart(), and every fd, page and worker is lost with the broker.
  void StopAndStart();
  // Removes everything that depended on sockets, pages and workers.
  void LoseFds();
  void LoseWorkers();
  void LoseSockets(ChannelId channel, Process& process);
  void PassDaemonless();
  // Reports to the next daemon's core which holders were found. `elsewhere`: no process is found by its pid.
  void NotifyOfLosses(const RestoredState& restored_state, bool elsewhere);
  void CheckLosses();
  // A permit is granted after all: its process had put it back, and its next use was not persisted.
  void RecallCached(const std::vector<AcquireResult>& cached);
  // A process or a lifeline reconnects, the last holder of one is found missing, or an operator ends a session whose
  // end nothing proves.
  void Resume();
  void ResumeProcess(ChannelId channel, Process& process);
  void EndByOperator(SessionId session);
  // Checks that waiters without a process since the start have left.
  void CheckDetached();

  // ---- cached_permits.cc: permits that processes cache between uses ----------------------------------------
  Payload NewPermitPayload(Process& process);
  // Some process uses its cached permit, or puts it back.
  void UseCached();
  void UseCached(ChannelId channel, Process& process);
  void PutBack(Process& process, PermitSlot* slot);
  // The process got a permit that it may cache.
  void LearnCached(ChannelId channel, Process& process, const AcquireResult& permit);
  // Settles permits that are no longer cached, by their permit slots.
  void SettleCached();
  // Returns nothing while the permit is cached.
  std::optional<PermitSlot::Lent> SettleCached(ChannelId channel, const AcquireResult& cached, bool in_use);
  PermitSlot* FindPermitSlot(ChannelId channel);

  // ---- pauses.cc: processes that stop, and their grants that are not taken up --------------------------------
  TakeUpWords* FindTakeUpWords(ChannelId channel);
  // Some process stops or continues, the daemon sees stopped processes, or a process sends a request again.
  void Pause();
  void SendAgain();
  void ApplyLook(const LookAtProcesses& look);
  // The core has granted the request, and may withdraw the grant until the process takes it up.
  void RecordOffer(ChannelId channel, uint64_t sequence, const Response& grant);
  // The answer arrives: the process reads it at once, or later.
  void ReceiveGrant(ChannelId channel, Process& process, uint64_t sequence);
  // Takes the grant up, or finds it withdrawn.
  void ReadGrant(ChannelId channel, Process& process, uint64_t sequence);
  // Follows the core: grants that it has withdrawn are not out any more.
  void SettleOffers();
  bool IsOut(const Response& grant);
  void Unlearn(const Response& grant);
  // No grant is left to a process that does not take it up while another request waits.
  void CheckOffers();

  // ---- messages.cc ----------------------------------------------------------------------------------------
  // A process sends a message on its channel; a broker that dies meanwhile leaves it to be received again.
  void Say(ChannelId channel, std::function<void()> what);
  void Acknowledge();
  void LetGo();
  void GiveBack();

  // ---- answers.cc: answers to clients -----------------------------------------------------------------------
  void ApplyReply(const Reply& reply);
  void Remember(const Call& call, const Reply& reply, bool lost);
  // The process reads the answer.
  void Receive(ChannelId channel, Process& process, Request& request, const absl::StatusOr<Response>& response);
  void LearnGang(const Process& process, const GangRequest& asked, const GangResult& gang);
  void CheckUndone(const Request& request);
  // Checks that the granted objects are in the right place, and that the memory exists and is as described.
  void CheckMemory(const BlockView& block);
  void CheckPlaced(const Request& request, const Response& response);
  void LearnReleased(SessionId session, AcquisitionId acquisition, const ReleaseResult& released);
  void Learn(ChannelId channel, Process& process, const Request& request,
             const absl::StatusOr<Response>& response);

  // ---- actors.cc: actions of clients ------------------------------------------------------------------------
  void OpenOrJoin();
  // Makes the joined process replace a process that had an earlier channel of the session, if there is one.
  void JoinAgain(ChannelId channel);
  void Ask();
  void Repeat();
  void ForgetOne();
  void CancelOne();
  // Cancels the calls of a channel whose connection has ended. Without a broker there are no calls.
  void CancelCallsOf(ChannelId channel);
  void EndSomething();
  void Kill(ChannelId channel);
  // The process ends without a report to the daemon.
  void Die(ChannelId channel);
  void OperateBlock();
  void Operate();
  void PassTime();
  void Look();
  Payload NewPayload(Process& process);
  // Returns an acquire that it may cache, if it caches any.
  AcquireRequest NewAcquire(const Process& process);
  // Returns a request about streams and the uses of blocks on them.
  Payload NewFencePayload(ChannelId channel, Process& process);
  // Completes work on some stream, uses a block that only one process maps, or carries out a requested hand-over.
  void RunStreams();
  void UseAlone(ChannelId channel, Process& process);
  void HandOver(ChannelId channel, Process& process);
  Client NewClient();
  // Returns the sequence of a request. Requires: the process has sent one.
  uint64_t SomeSequence(const Process& process);
  AcquireRequest NewAcquire();
  GangRequest NewGang();
  PoolChange NewPoolChange();
  AllocateRequest NewAllocate(const Client& client);
  ReserveRequest NewReserve();
  // Returns a publication; an allocation for a client that has nothing to publish.
  Payload NewPublish(const Process& process, Client& client);
  std::string SomeName();
  // Forgets most of a client's blocks that no longer exist.
  void ForgetGone(Client& client);
  DeviceConstraint NewConstraint();
  BlockHandle SomeHandle(const Client& client);
  // Whether some worker's driver has allocated it.
  bool IsMade(BlockId block) const;
  // Returns whether it was sent with the right secret.
  bool Send(ChannelId channel, uint64_t sequence, const Payload& payload, bool reused);

  // ---- plans.cc: how clients split work ------------------------------------------------------------------
  Payload NewPlanPayload(const Client& client);
  PlanRequest NewPlan();
  void LearnPlan(const Process& process, const PlanResult& result);
  // The plan is released: its permits are not granted any more.
  void ForgetPlan(PlanId plan);
  void CheckPlans();

  // ---- modules.cc: compiled modules -----------------------------------------------------------------------
  // Puts modules of an earlier daemon on disk.
  void LeaveModules();
  Payload NewModulePayload(ChannelId channel);
  // Ends a right to compile that the message gives up, if the sender owns it.
  void ReleaseModule(const Payload& payload);
  void LearnModule(ChannelId channel, const Process& process, const ObtainModuleRequest& asked,
                   const ObtainModuleResult& result);
  void ApplyModuleWork(const ModuleWork& work);
  // The module store does some work.
  void UseModules();
  void FinishModules();

  // ---- monitor.cc: the monitor's reports about devices --------------------------------------------------------
  void Monitor();

  // ---- workers.cc: devices and their workers -----------------------------------------------------------------
  void Work();
  // Lets the workers execute all their commands.
  void WorkAll();
  void BreakWorker();
  // A replacement follows a worker that ended, or an operator handles its device.
  void MendWorker();
  // The supervisor carries out a command.
  void FollowCommand();
  WorkerKey SomeWorker();
  // Ends the worker; `stopped`: without a replacement.
  void EndWorker(WorkerKey key, bool stopped, bool may_stick = true);
  // The driver has lost its device.
  void LoseWorker(WorkerKey key);
  // Drops a worker whose device is removed from the node, with all its memory.
  void DropWorker(WorkerKey key);
  // Notifies the core, if there is one.
  template <typename News>
  void Notify(News news) {
    if (!dead_) news(*core_);
  }
  void NotifyUp(WorkerKey key);
  void NotifyDown(WorkerKey key);
  // Advances the generation of the worker's memory, where that memory ends with the worker.
  void MarkOver(WorkerKey key);
  void StartContext(WorkerKey key);
  void Report(WorkerKey key);
  void OperateDevice();
  // Drains or undrains it, or reports it as lost or returned.
  void ChangeDevice(uint32_t device);

  // A block's handle, derived from its id, so that a wrong handle is detected.
  static IpcHandle HandleFor(BlockId block);
  uint64_t Draw(uint64_t below);
  bool Chance(uint64_t percent) { return Draw(100) < percent; }
  std::optional<ChannelId> SomeChannel();
  // Returns a channel that may send requests, or one that may not any more, if there is such.
  std::optional<ChannelId> SomeChannel(bool may_ask);
  bool MayAsk(ChannelId channel) const;
  Caller CallerOf(ChannelId channel);
  Caller Admin() const { return Caller{.admin = true}; }

  // How long a waiter retains its place for a repeated call.
  static constexpr absl::Duration kAbsence = absl::Seconds(5);

  const Options options_;
  uint64_t random_;
  Config config_;
  uint64_t last_drawn_;
  std::unique_ptr<Core> core_;
  // The records that a next broker would find.
  LedgerRecords records_;
  // A broker that has just started resumes: it may send messages that were sent before.
  bool resuming_ = false;
  // Effects are left; are carried out after further events; and there is no broker.
  bool stalled_ = false;
  bool late_ = false;
  bool dead_ = false;
  // The next daemon has no page, and has not reported that to the core.
  bool pages_lost_ = false;
  // Values may be anything until the next check.
  bool settling_ = false;
  // Where the effects of each persisted step end.
  std::vector<size_t> persisted_steps_;
  std::vector<std::function<void()>> once_persisted_;
  // Messages of the last act.
  std::vector<std::pair<ChannelId, std::function<void()>>> said_;
  // Opened and joined in the last act.
  SessionId fresh_session_;
  ChannelId fresh_channel_;
  absl::Status status_;
  uint64_t step_ = 0;
  Counts counts_;
  // Dead processes whose end no daemon can see.
  std::map<ChannelId, Process> ghosts_;
  // The time by which waiters from before the last start have repeated their requests, or left.
  absl::Time detached_until_ = absl::InfiniteFuture();
  absl::Time now_ = absl::UnixEpoch();
  Effects effects_;
  uint64_t last_effect_ = 0;

  IndexedMap<SessionId, Client> clients_;
  IndexedMap<ChannelId, Process> processes_;
  std::vector<BlockHandle> handles_;
  uint64_t last_call_ = 0;
  uint64_t last_record_ = 0;
  // Some records may have been lost.
  bool records_lost_ = false;
  // Granted leases, by the reports of their grants and ends.
  std::set<std::pair<LeaseKind, uint64_t>> leases_;
  // Calls that wait for a retry of failed releases.
  std::set<CallId> reaps_;
  std::map<CallId, Call> calls_;
  std::map<WorkerKey, Worker> workers_;
  // Reasons of the devices' drains.
  std::map<uint32_t, std::string> drained_;
  // The values of existing pages, and the values that streams have queued to write into theirs.
  std::map<StreamKey, FenceValues> fence_values_;
  std::map<StreamKey, uint64_t> queued_;
  std::map<ChannelId, PermitSlot> permit_slots_;
  // Processes that may cache a permit, among them all that do.
  std::set<ChannelId> cachers_;
  // A permit slot has shown a change that the broker had not reported, since the last broker began to die.
  bool settled_ = false;
  // Cached permits of dead processes.
  std::map<ChannelId, AcquireResult> left_cached_;
  // The take-up words of processes; the grants in them that their processes have not taken up; the requests to send
  // again; and the stopped processes that the daemon has seen.
  struct Offer {
    Response grant;
    absl::Time since;
    // The word said WITHDRAWN from the start: perhaps about an earlier grant, if this one is final.
    bool withdrawn_at_once = false;
    // The process has found it withdrawn.
    bool refused = false;
  };
  std::map<ChannelId, TakeUpWords> take_up_;
  std::map<std::pair<ChannelId, uint64_t>, Offer> offers_;
  std::deque<std::pair<ChannelId, uint64_t>> again_;
  std::vector<ChannelId> seen_stopped_;
  AloneUses alone_;
  ModuleModel modules_;
  std::set<ChannelId> pages_;
  // Pages whose creation was lost: nothing is in them.
  std::set<ChannelId> unmade_pages_;
  bool workers_fail_ = true;
  // Blocks that the core has given up as lost with their workers.
  std::deque<BlockId> lost_;
  // Objects that the core's answers granted: permits with their sessions and acquisitions.
  std::map<PermitId, std::pair<SessionId, std::set<AcquisitionId>>> permits_;
  // The same for plans.
  std::map<PlanId, std::shared_ptr<const PlanLayout>> plans_;
  std::map<std::string, uint64_t> out_before_;
  // Quotas since the last check, and each tenant's use then, in the order of ForEachQuota().
  std::vector<QuotaTable> quotas_since_;
  std::map<Tenant, std::array<uint64_t, 5>> had_before_;
  // By layer, device, and the session or the tenant's user.
  std::map<std::array<uint64_t, 3>, uint64_t> charged_before_;
};

}  // namespace berth::core

#endif  // TESTS_SIM_SIMULATION_H_
