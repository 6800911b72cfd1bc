// Simulation: a node's whole life around the core, without a process or a thread: clients that do everything
// clients can do, rightly and wrongly, kernels that kill them in any order, workers that work, fail and die,
// operators, time. A seed makes it all, so a seed replays any run.
//
// The model beside the core knows what the core's effects gave to whom, and compares after every step. The
// first thing that is not as promised ends the run; status() names it with its step.

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
#include "common/permit_word.h"
#include "common/row.h"
#include "daemon/core/core.h"
#include "tests/sim/alone_uses.h"
#include "tests/sim/indexed_map.h"
#include "tests/sim/module_model.h"

namespace berth::core {

class Simulation {
 public:
  struct Options {
    uint64_t seed = 1;
    // Sessions open at a time, at most.
    uint64_t sessions = 30;
    uint64_t channels_per_session = 4;
    // The books are checked whole every so many steps: that costs time linear in everything held.
    uint64_t check_every = 8;
    // And what is written down is compared with them every so many.
    uint64_t check_rows_every = 32;
    // The broker dies now and then: before what a step changed is written down, or after any of the effects of several.
    bool restarts = false;
    // Clients want permits and plans alone.
    bool only_permits = false;
    // Limits are wide and no tenant has a quota, whatever the seed.
    bool wide = false;
  };

  explicit Simulation(const Options& options);

  // Opens so many sessions with a process each. Requires: wide limits.
  void Crowd(uint64_t sessions);
  // Takes so many steps, or fewer if one breaks a promise.
  void Run(uint64_t steps);
  // The same for as long as that is in there.
  void RunFor(absl::Duration duration);
  // Kills everybody in some order, lets the workers finish, and expects every unit and byte back.
  void Finish();

  const absl::Status& status() const { return status_; }
  // Processes that there are.
  size_t processes() const { return processes_.size(); }
  uint64_t steps() const { return step_; }
  // What came of it all, to see that a run is not idle.
  struct Counts {
    uint64_t sessions = 0, grants = 0, nested = 0, gangs = 0, told_revoked = 0;
    // Plans made, made anew, with units that moved, and said to be stale.
    uint64_t plans = 0, replans = 0, moves = 0, told_stale = 0;
    uint64_t allocations = 0, imports = 0, undone = 0, replayed = 0;
    uint64_t quarantined = 0, worker_deaths = 0, reservations = 0, drawn = 0, published = 0;
    uint64_t hung_workers = 0, abandoned_workers = 0, enabled_devices = 0, resets = 0;
    uint64_t drained = 0, lost_devices = 0, picked = 0, quotas = 0, readings = 0, cleared = 0, explained = 0;
    // Context workers: started, and ended because nobody needed them; blocks whose memory went with one.
    uint64_t contexts = 0, idle_contexts = 0, lost_blocks = 0;
    // Channels that joined again, and those of processes that outlived their session.
    uint64_t rejoined = 0, left_alive = 0;
    // Uses that waited for a word, that were finished, and that were told of a torn block; hand-overs.
    uint64_t waits = 0, finished = 0, torn = 0, handed_over = 0;
    // Launches that waited for what was handed over, and that were told what a process had left torn that had the
    // block alone.
    uint64_t handed_waits = 0, torn_alone = 0;
    // Compiled modules: given, to be compiled, and found corrupt.
    uint64_t modules = 0, rights_to_compile = 0, corrupt_modules = 0;
    // Brokers that died; of them, those with a step not written down; what was waited for then; answers and deliveries
    // that were lost with them.
    uint64_t restarts = 0, lost_steps = 0, waited_on = 0, lost_answers = 0, lost_deliveries = 0;
    // Of what workers were to do; of what was to come into custody or leave it; of orders about devices; of what the
    // keeper of modules was to do.
    uint64_t lost_jobs = 0, lost_custody = 0, lost_orders = 0, lost_module_work = 0;
    // Kept permits that were taken again without the daemon; of them, while there was no broker; and taken back.
    uint64_t taken_again = 0, taken_in_between = 0, taken_back = 0;
    // Leases whose end only the next broker saw, and messages of processes that two brokers heard.
    uint64_t unseen = 0, heard_again = 0;
    uint64_t dropped_devices = 0, expired = 0;
    // By reason; LIMIT by what is limited.
    std::map<std::string, uint64_t> refusals;
  };
  const Counts& counts() const { return counts_; }

 private:
  using Payload = std::variant<AcquireRequest, AcquisitionId, AllocateRequest, FreeRequest, GrantRequest,
                               ImportRequest, OpenStreamRequest, CloseStreamRequest, PrepareUseRequest,
                               FinishUseRequest, AbandonUseRequest, ReserveRequest, ReservationId,
                               PublishRequest, UnpublishRequest, GangRequest, PlanRequest, ReplanRequest,
                               PlanId, ObtainModuleRequest, StoreModuleRequest, AbandonModuleRequest,
                               KeepPermitsRequest, ReleaseIfIdleRequest>;

  struct Request {
    Payload payload;
    // Of an attempt before this one, where that had another.
    absl::Time earlier_deadline = absl::InfiniteFuture();
    uint64_t answered_below = 0;
    // The first answer that a repeat must get again.
    std::optional<absl::StatusOr<Response>> first;
    // The client knows the outcome.
    bool settled = false;
    // Whether it reached the daemon at all.
    bool sent = false;
    bool forgotten = false;
  };
  struct Process {
    SessionId session;
    uint64_t last_sequence = 0;
    std::map<uint64_t, Request> requests;
    bool hung_up = false;
    uint64_t last_delivery = 0;
    uint64_t acknowledged = 0;
    std::set<uint64_t> fds_under_way;
    // Fds that it was sent and has not let go.
    std::map<ImportId, BlockId> mapped;
    // Those of them whose fd it can write, and those that it has said to write nothing to.
    std::set<ImportId> writable;
    std::set<ImportId> read_only;
    bool Writes(ImportId import) const { return writable.contains(import) && !read_only.contains(import); }
    // Slots that it knows, and uses that it has begun on them.
    std::set<uint32_t> streams;
    std::map<UseId, PrepareUseRequest> uses;
    // Blocks that it was asked to hand over.
    std::set<BlockId> wanted;
    // Whose pages it was sent.
    std::set<ChannelId> pages;
    // It knows its page's word, keeps that permit, and uses it.
    bool keeps = false;
    std::optional<AcquireResult> kept;
    bool in_use = false;
    // It has put back what somebody waits for, and has not told the daemon yet.
    bool owes_look = false;
    // It has joined again: the channel that stands for it from then on.
    ChannelId replaced_by;
  };
  struct Client {
    Secret secret;
    Tenant tenant;
    bool ended = false;
    // Its lifeline is closed, which every broker sees.
    bool hung_up = false;
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
    // To make so many; nothing to release it.
    std::optional<Bytes> create;
  };
  struct Worker {
    DeviceState state = DeviceState::kRebuilding;
    std::deque<Job> jobs;
    // What the driver has given out, and the generation that it is of.
    struct Memory {
      Bytes bytes;
      uint64_t generation = 0;
    };
    std::map<BlockId, Memory> made;
    // What it could not release.
    std::set<BlockId> stuck;
    // It does nothing any more, and says nothing.
    bool hung = false;
    // It was killed, and is not gone.
    bool abandoned = false;
    // It is at what an earlier broker asked.
    bool behind = false;
    // Its device is gone from the node.
    bool dropped = false;
    // What the core wants of the vault, which has not got to it yet.
    std::deque<DeviceOrder> orders;
    uint64_t generation = 1;
    // Of a context worker: its end is said already.
    bool over = true;
  };
  // One of a device's workers.
  using WorkerKey = std::pair<uint32_t, Lane>;

  // ---- simulation.cc: steps, effects, checks --------------------------------------------------------------
  void Step();
  void Act();
  void Carry();
  void CarryEffect(const Effect& effect);
  void CarryDeliver(const Deliver& deliver);
  // Whether the words of the channel's page may be read: the page is there, or nobody has written to it yet.
  bool MayRead(ChannelId channel) const;
  // Whether it can be asked for anything.
  bool IsThere(const Worker& worker);
  void CarryRelease(const ReleaseBlock& release);
  void CarryDropChannel(ChannelId channel);
  void CarryPage(Process& process, const Deliver& deliver);
  void CarryDropPage(ChannelId channel);
  void CarryDropSession(SessionId session);
  void CarryOrder(const OrderDevice& order);
  void Check();
  void CheckPools();
  void CheckDevices();
  // ---- quotas.cc: no tenant has more than its quota, but what it had when that was lowered -------------------
  void ChangeQuotas();
  void CheckQuotas();
  // An operator deletes what outlives every session.
  void DeletePublished();
  void Fail(const std::string& what);

  // ---- restarts.cc: what outlives the broker ---------------------------------------------------------------
  std::unique_ptr<Core> NewCore();
  // What the last steps changed is written down; what was to follow from that follows.
  void Keep();
  // Has `then` happen once what the step changed is written down, if it ever is.
  void OnceKept(std::function<void()> then) { once_kept_.push_back(std::move(then)); }
  void NoteLease(const LeaseRecord& lease);
  // Of permits that were held for too long, by those effects of a step.
  void NoteExpired(size_t begin, size_t end);
  void CheckLeases();
  void CheckRows();
  // Takes some steps of whose effects nobody has heard, the last of which may not be written down. The broker dies, and
  // another follows.
  void Restart();
  void TakeUncarriedSteps();
  // What follows a step when no more effects are carried out.
  void ActSafely();
  // Some of the effects are carried out, in their order. The rest is lost.
  void LoseEffects();
  void LoseEffect(const Effect& effect);
  // What happens while there is no broker.
  void PassBrokerless();
  // The broker that follows reads what was written down; `untold`: and finds in words what was not.
  void Restore(bool untold);
  // Its view of who is there is that of those who are, but for what nobody was told of.
  void MatchSessions(const Standing& standing);
  void MatchProcesses(const Standing& standing);
  // What the history takes for out is what is out.
  void MatchLeases();
  void TakeUpModules();
  void TellLosses(const Standing& standing);
  // Pages in custody that no process's row stands for.
  void LetPagesGo(const Standing& standing);
  // The worker does what the broker had asked, and nobody hears of it.
  void CatchUp(Worker& worker);
  void TellWorkers();
  // Clients ask again what they have no answer to.
  void AskAgain();

  // ---- kept.cc: permits that processes keep between uses ---------------------------------------------------
  Payload NewPermitPayload(Process& process);
  // Some process uses what it keeps, or puts it back.
  void UseKept();
  void UseKept(ChannelId channel, Process& process);
  void PutBack(Process& process, PermitWord* word);
  // It has been granted a permit that it may keep.
  void LearnKept(ChannelId channel, Process& process, const AcquireResult& permit);
  // What the words say of permits that are kept no longer.
  void SettleKept();
  // Nothing while it is kept.
  std::optional<PermitWord::Lent> SettleKept(ChannelId channel, const AcquireResult& kept, bool in_use);
  PermitWord* FindWord(ChannelId channel);

  // ---- messages.cc ----------------------------------------------------------------------------------------
  // A process says something on its channel; a broker that dies at it leaves it to be heard again.
  void Say(ChannelId channel, std::function<void()> what);
  void Acknowledge();
  void LetGo();
  void GiveBack();

  // ---- answers.cc: what clients are answered --------------------------------------------------------------
  void CarryReply(const Reply& reply);
  void Remember(const Call& call, const Reply& reply, bool lost);
  void LearnGang(const Process& process, const GangRequest& asked, const GangResult& gang);
  void CheckUndone(const Request& request);
  // What was granted is where it was to be.
  // The memory given out is there, and what it is said to be.
  void CheckMemory(const BlockView& block);
  void CheckPlaced(const Request& request, const Response& response);
  void LearnReleased(SessionId session, AcquisitionId acquisition, const ReleaseResult& released);
  void Learn(ChannelId channel, Process& process, const Request& request,
             const absl::StatusOr<Response>& response);

  // ---- actors.cc: what they do ----------------------------------------------------------------------------
  void OpenOrJoin();
  // The process that has joined is one that had a channel of the session before, if there is such.
  void JoinAgain(ChannelId channel);
  void Ask();
  void Repeat();
  void ForgetOne();
  void CancelOne();
  void EndSomething();
  void Kill(ChannelId channel);
  // It ends without anybody's hearing of it.
  void Die(ChannelId channel);
  void OperateBlock();
  void Operate();
  void PassTime();
  void Look();
  Payload NewPayload(Process& process);
  // One that it may keep, if it keeps any.
  AcquireRequest NewAcquire(const Process& process);
  // One about streams and the uses of blocks on them.
  Payload NewFencePayload(ChannelId channel, Process& process);
  // Work on some stream ends, a block that one process alone maps is used, or a wish for a block is met.
  void RunStreams();
  void UseAlone(ChannelId channel, Process& process);
  void HandOver(ChannelId channel, Process& process);
  Client NewClient();
  // Of a process that has asked something.
  uint64_t SomeSequence(const Process& process);
  AcquireRequest NewAcquire();
  GangRequest NewGang();
  PoolChange NewPoolChange();
  AllocateRequest NewAllocate(const Client& client);
  ReserveRequest NewReserve();
  PublishRequest NewPublish(const Process& process, const Client& client);
  DeviceWish NewWish();
  BlockHandle SomeHandle(const Client& client);
  // Whether some worker's driver has given it out.
  bool IsMade(BlockId block) const;
  // Returns whether it was sent with the right secret.
  bool Send(ChannelId channel, uint64_t sequence, const Payload& payload, bool reused);

  // ---- plans.cc: how clients split work ------------------------------------------------------------------
  Payload NewPlanPayload(const Client& client);
  PlanRequest NewPlan();
  void LearnPlan(const Process& process, const PlanResult& result);
  // The plan is given back: its permits are not out any more.
  void ForgetPlan(PlanId plan);
  void CheckPlans();

  // ---- modules.cc: compiled modules -----------------------------------------------------------------------
  // An earlier daemon has left some on disk.
  void LeaveModules();
  Payload NewModulePayload(ChannelId channel);
  // What was sent gives a right to compile up, if it is one's own.
  void ReleaseModule(const Payload& payload);
  void LearnModule(ChannelId channel, const Process& process, const ObtainModuleRequest& asked,
                   const ObtainModuleResult& result);
  void CarryModuleWork(const ModuleWork& work);
  // The keeper does something.
  void KeepModules();
  void FinishModules();

  // ---- monitor.cc: what the monitor says of devices -------------------------------------------------------
  void Monitor();

  // ---- workers.cc: what becomes of devices ----------------------------------------------------------------
  void Work();
  void BreakWorker();
  // One that ended is followed by another, or an operator sees to its device.
  void MendWorker();
  // The vault does what it was ordered.
  void FollowOrder();
  WorkerKey SomeWorker();
  // The worker ends; `stopped`: and none follows.
  void EndWorker(WorkerKey key, bool stopped, bool may_stick = true);
  // The driver has lost its device.
  void LoseWorker(WorkerKey key);
  // Its device is gone from the node, with all its memory.
  void DropWorker(WorkerKey key);
  // Tells the core, if there is one.
  template <typename News>
  void Tell(News news) {
    if (!dead_) news(*core_);
  }
  void TellUp(WorkerKey key);
  void TellDown(WorkerKey key);
  // Moves the generation of what the worker makes, where it dies with it.
  void NoteOver(WorkerKey key);
  void StartContext(WorkerKey key);
  void Report(WorkerKey key);
  void OperateDevice();
  // It is drained or not, lost or there again.
  void ChangeDevice(uint32_t device);

  // A block's handle: made of its id, so that another's would show.
  static IpcHandle HandleFor(BlockId block);
  uint64_t Draw(uint64_t below);
  bool Chance(uint64_t percent) { return Draw(100) < percent; }
  std::optional<ChannelId> SomeChannel();
  // One that may ask, or may not any more, as far as there are such.
  std::optional<ChannelId> SomeChannel(bool may_ask);
  bool MayAsk(ChannelId channel) const;
  Caller CallerOf(ChannelId channel);
  Caller Admin() const { return Caller{.admin = true}; }

  const Options options_;
  uint64_t random_;
  Config config_;
  uint64_t last_drawn_;
  std::unique_ptr<Core> core_;
  // What a broker that follows would find.
  Rows rows_;
  // A broker that has just started goes on: it may send what was sent before.
  bool resuming_ = false;
  // Effects are left; are carried out after more has happened; and there is no broker.
  bool stalled_ = false;
  bool late_ = false;
  bool dead_ = false;
  // Figures may be anything that the next look finds.
  bool settling_ = false;
  // Where the effects end of each step that is written down.
  std::vector<size_t> kept_steps_;
  std::vector<std::function<void()>> once_kept_;
  // What was said in the last act.
  std::vector<std::pair<ChannelId, std::function<void()>>> said_;
  // Opened and joined in the last act.
  SessionId fresh_session_;
  ChannelId fresh_channel_;
  absl::Status status_;
  uint64_t step_ = 0;
  Counts counts_;
  absl::Time now_ = absl::UnixEpoch();
  Effects effects_;
  uint64_t last_effect_ = 0;

  IndexedMap<SessionId, Client> clients_;
  IndexedMap<ChannelId, Process> processes_;
  std::vector<BlockHandle> handles_;
  uint64_t last_call_ = 0;
  uint64_t last_record_ = 0;
  // Some may have been lost.
  bool records_lost_ = false;
  // Leases that are out, by what was told of their grants and ends.
  std::set<std::pair<LeaseKind, uint64_t>> leases_;
  // Calls that wait for failed releases to be tried again.
  std::set<CallId> reaps_;
  std::map<CallId, Call> calls_;
  std::map<WorkerKey, Worker> workers_;
  // Why devices are drained.
  std::map<uint32_t, std::string> drained_;
  // The words of pages that there are, what streams have queued to write into theirs, and the channels that have one.
  std::map<StreamKey, StreamWords> words_;
  std::map<StreamKey, uint64_t> queued_;
  std::map<ChannelId, PermitWord> permit_words_;
  // Processes that may keep a permit, of which all that do are.
  std::set<ChannelId> keepers_;
  // A word has told of some of them what the broker had not, since the last one began to die.
  bool settled_ = false;
  // What dead processes kept.
  std::map<ChannelId, AcquireResult> left_kept_;
  AloneUses alone_;
  ModuleModel modules_;
  std::set<ChannelId> pages_;
  // Of which it was lost that they are to be made: nothing is in them.
  std::set<ChannelId> unmade_pages_;
  bool workers_fail_ = true;
  // Blocks that the core has given up as gone with their workers.
  std::deque<BlockId> lost_;
  // What the core's answers gave out: permits with their sessions and acquisitions.
  std::map<PermitId, std::pair<SessionId, std::set<AcquisitionId>>> permits_;
  // The same of plans.
  std::map<PlanId, std::shared_ptr<const PlanLayout>> plans_;
  std::map<std::string, uint64_t> out_before_;
  // Quotas there have been since the last look, and what each tenant had then, in the order of ForEachFigure().
  std::vector<QuotaTable> quotas_since_;
  std::map<Tenant, std::array<uint64_t, 5>> had_before_;
  // By layer, device, and the session or the tenant's user.
  std::map<std::array<uint64_t, 3>, uint64_t> charged_before_;
};

}  // namespace berth::core

#endif  // TESTS_SIM_SIMULATION_H_
