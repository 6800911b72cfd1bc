// CoreHarness: a test fixture around a core. The harness calls the core, applies the effects to plain containers, and
// checks the invariants after every step.

#ifndef DAEMON_CORE_TESTING_CORE_HARNESS_H_
#define DAEMON_CORE_TESTING_CORE_HARNESS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <berth/error.h>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/core.h"
#include "gtest/gtest.h"

namespace berth::core {

// One process of a session.
struct Peer {
  SessionId session;
  ChannelId channel;
  Secret secret;
  Tenant tenant;
  // Sequence of its last request.
  uint64_t sequence = 0;

  Caller caller() const {
    return {.credentials = {.session = session, .channel = channel, .secret = secret}, .tenant = tenant};
  }
  // Takes grants up, and sends its requests again after PROCESS_STOPPED.
  bool takes_up = false;

  RequestTag Next() { return {.sequence = ++sequence, .takes_up = takes_up}; }
  RequestTag Again() const { return {.sequence = sequence, .takes_up = takes_up}; }
};

// Restores as a broker does: fails also for records that are inconsistent.
absl::Status Restore(const LedgerRecords& records, Core* core, const ArchiveOrigin& origin = {.schema = kRecordSchema});

class CoreHarness {
 public:
  // Pools "gpu-tests" (cap 2) and "wide" (cap 8); device 0 on the host, 1 on CUDA, each with a budget of 16 MiB of 64;
  // no warm blocks.
  static Config DefaultConfig();
  // DefaultConfig() where a context takes `context` bytes until a context worker measures it.
  static Config MeasuringConfig(Bytes context);

  // Starts with the workers up.
  explicit CoreHarness(const Config& config = DefaultConfig());

  // Open() makes a process in its own session; JoinTo() another process in the peer's session.
  Peer Open(uint32_t uid = 1000, bool of_operator = false) { return Open(Tenant{.uid = uid}, of_operator); }
  Peer Open(const Tenant& tenant, bool of_operator = false);
  Peer JoinTo(const Peer& peer);

  CallId Acquire(Peer& peer, const AcquireRequest& request);
  CallId AcquireGang(Peer& peer, const GangRequest& request);
  CallId Release(Peer& peer, AcquisitionId acquisition);
  CallId Allocate(Peer& peer, Bytes bytes, uint32_t device = 0);
  CallId Allocate(Peer& peer, const AllocateRequest& request);
  CallId Publish(Peer& peer, const BlockHandle& handle, const std::string& name,
                 std::vector<ImportId> let_go = {});
  CallId Unpublish(Peer& peer, const std::string& name);
  CallId ImportNamed(Peer& peer, const std::string& name);
  CallId Reserve(Peer& peer, const ReserveRequest& request);
  CallId ReleaseReservation(Peer& peer, ReservationId reservation);
  CallId MakePlan(Peer& peer, const PlanRequest& request);
  CallId Replan(Peer& peer, PlanId plan, bool reweigh = false);
  CallId ReleasePlan(Peer& peer, PlanId plan);
  CallId Free(Peer& peer, const BlockHandle& handle, std::vector<ImportId> let_go = {});
  CallId Grant(Peer& peer, const BlockHandle& handle, const Grantee& grantee);
  CallId Import(Peer& peer, const BlockHandle& handle, bool read_only = false);
  // `maps`: the process maps and acknowledges its page.
  CallId KeepPermits(Peer& peer, bool maps = true);
  CallId ReleaseIfIdle(Peer& peer, AcquisitionId acquisition);
  CallId OpenStream(Peer& peer, uint32_t device = 0, bool default_stream = false);
  CallId CloseStream(Peer& peer, uint32_t slot);
  CallId Prepare(Peer& peer, uint32_t slot, std::vector<BlockUse> uses);
  CallId Finish(Peer& peer, UseId use, uint64_t value);
  CallId Abandon(Peer& peer, UseId use);
  CallId ObtainModule(Peer& peer, const ObtainModuleRequest& request);
  CallId StoreModule(Peer& peer, const StoreModuleRequest& request);
  CallId AbandonModule(Peer& peer, CompileId compile, const std::string& error = "");
  void HandOver(const Peer& peer, BlockId block, const std::vector<HandedMark>& marks = {});
  CallId Forget(const Peer& peer, uint64_t sequence);
  // The broker dies after its decisions were carried out, and the next one restores `records`, perhaps with another
  // configuration. Workers stay up. Waiting calls are lost.
  void Restart() { Restart(config_); }
  void Restart(const Config& config);

  // Runs any step: `act` gets the effects to fill and, in Ask(), a new call.
  template <typename Act>
  void Do(Act act) {
    Effects effects;
    act(*core, &effects);
    Apply(effects);
  }
  template <typename Act>
  CallId Ask(Act act) {
    const CallId call(++last_call_);
    Effects effects;
    act(*core, call, &effects);
    Apply(effects);
    return call;
  }

  // Acquires a permit, or allocates a block and lets the worker make it; either must be granted.
  AcquireResult MustAcquire(Peer& peer, const AcquireRequest& request);
  AllocateResult MustAllocate(Peer& peer, Bytes bytes, uint32_t device = 0);
  // Sets a limit as the peer `as`, or as an operator without one.
  absl::StatusOr<std::vector<BudgetView>> SetBudget(const SetBudgetRequest& request,
                                                    const Peer* as = nullptr);
  // Returns the account of one layer; empty if there is none.
  BudgetView Budget(Layer layer, uint32_t device, const Peer& peer) const;

  // The worker does its next job, or all jobs.
  void WorkOnce(const absl::Status& status = absl::OkStatus());
  void WorkAll();
  // Device 0's worker dies with its jobs, or a new worker serves.
  void DropWorker(bool stopped = false);
  void RaiseWorker();
  // A device goes out of service, or its memory is lost.
  void StopDevice(uint32_t device);
  void LoseMemory(uint32_t device, uint64_t generation);
  // Returns the handle that the context worker reports for a block.
  static IpcHandle HandleFor(BlockId block);
  // Calls Core::Tick().
  void Tick();
  void Gone(const Peer& peer);
  // HangUpChannel(): the process closes its channel. HangUp(): the session's last lifeline is closed.
  void HangUpChannel(const Peer& peer);
  void HangUp(const Peer& peer);
  void LetGo(const Peer& peer, ImportId import);
  absl::StatusOr<ReleaseResult> GiveBack(const Peer& peer, AcquisitionId acquisition, bool if_idle = false);
  void Acknowledge(const Peer& peer, uint64_t number);

  bool Answered(CallId call) const { return replies.contains(call); }
  absl::Status StatusOf(CallId call) const;
  bool Refused(CallId call, Reason reason) const { return IsRefusal(StatusOf(call), reason); }
  std::string NamedValue(CallId call, const std::string& name) const;
  template <typename Result>
  Result Get(CallId call) const {
    EXPECT_TRUE(Answered(call));
    EXPECT_TRUE(StatusOf(call).ok()) << StatusOf(call);
    return std::get<Result>(*replies.at(call));
  }

  ByteCounts BytesOf(uint32_t device) const { return core->ListDevices().at(device).bytes; }
  PoolView Pool(const std::string& name = "gpu-tests") const { return *core->GetPool(name); }
  static Caller Admin() { return {.admin = true}; }
  // Returns everything that is shown, as text, without counts of refusals.
  std::string Accounts() const;

  std::unique_ptr<Core> core;
  // Processes that join from now on are in a PID namespace that the daemon does not see.
  bool unseen = false;
  // The records that a restarted broker would find.
  LedgerRecords records;
  absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  // The fence values and permit slots in the processes' pages.
  std::map<StreamKey, FenceValues> fence_values;
  std::map<ChannelId, PermitSlot> permit_slots;
  std::map<ChannelId, TakeUpWords> take_up_words;
  // The effects in order. Tests take from these as they like.
  std::map<CallId, absl::StatusOr<Response>> replies;
  std::deque<std::variant<CreateBlock, ReleaseBlock>> jobs;
  std::vector<Deliver> deliveries;
  std::vector<ChannelId> closed_channels;
  std::vector<ChannelId> dropped_channels;
  // Channels that have a page.
  std::set<ChannelId> pages;
  std::vector<SessionId> dropped_sessions;
  std::vector<SendWorkerCommand> commands;
  // Pending work of the module store.
  std::deque<ModuleWork> module_work;
  // DevicesChanged effects, log records and lease records, which last_effects leaves out.
  uint64_t device_changes = 0;
  // The processes of the last LookAtProcesses effect, which last_effects leaves out.
  std::vector<ChannelId> looked_at;
  std::vector<LogRecord> log;
  // `open_leases`: the leases that are open by these records, by kind and id.
  std::vector<LeaseRecord> leases;
  std::map<std::pair<LeaseKind, uint64_t>, LeaseRecord> open_leases;
  // The kinds of the last step's effects, in order: "deliver reply create release order".
  std::string last_effects;

 private:
  void MakeCore();
  // Persists the changes of the last steps, and expects them to be complete.
  void Keep();
  void Apply(const Effects& effects);
  void RecordLease(const LeaseRecord& lease);
  // Expects the core's open leases to match the lease records.
  void CheckLeases() const;
  Config config_;
  // While resuming, existing blocks may be made and sent again.
  bool resuming_ = false;
  std::optional<Peer> operator_;
  uint64_t last_id_ = 1'000;
  uint64_t last_call_ = 0;
  uint64_t last_effect_ = 0;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_TESTING_CORE_HARNESS_H_
