// CoreHarness: a core for tests with everything around it: it calls, carries the effects out into plain
// containers, and checks the books after every step.

#ifndef DAEMON_CORE_CORE_HARNESS_H_
#define DAEMON_CORE_CORE_HARNESS_H_

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

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/error.h"
#include "daemon/core/core.h"
#include "gtest/gtest.h"

namespace berth::core {

// One process of a session.
struct Peer {
  SessionId session;
  ChannelId channel;
  Secret secret;
  Tenant tenant;
  // Of its last request.
  uint64_t sequence = 0;

  Caller caller() const {
    return {.credentials = {.session = session, .channel = channel, .secret = secret}, .tenant = tenant};
  }
  RequestTag Next() { return {.sequence = ++sequence}; }
  RequestTag Again() const { return {.sequence = sequence}; }
};

// As a broker restores it: not OK as well for rows that do not go together.
absl::Status Restore(const Rows& rows, Core* core, const ArchiveOrigin& origin = {.schema = kRowSchema});

class CoreHarness {
 public:
  // Pools "gpu-tests" (cap 2) and "wide" (cap 8); device 0 on the host, 1 on CUDA, each with a budget of 16
  // MiB of 64; nothing is kept warm.
  static Config DefaultConfig();
  // The same, where a context is taken to take so much of a device until a context worker tells better.
  static Config MeasuringConfig(Bytes context);

  // Workers are up.
  explicit CoreHarness(const Config& config = DefaultConfig());

  // A process in a session of its own, and another one in the same session.
  Peer Open(uint32_t uid = 1000);
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
  CallId KeepPermits(Peer& peer);
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
  // The broker dies after what it had decided was carried out, and another goes on from `rows`, perhaps with another
  // configuration; workers stay up. Calls that waited are gone.
  void Restart() { Restart(config_); }
  void Restart(const Config& config);

  // Any step: `act` is given the effects to fill and, where it wants one, a new call.
  template <typename Act>
  void Do(Act act) {
    Effects effects;
    act(*core, &effects);
    Carry(effects);
  }
  template <typename Act>
  CallId Ask(Act act) {
    const CallId call(++last_call_);
    Effects effects;
    act(*core, call, &effects);
    Carry(effects);
    return call;
  }

  // Acquires a permit, or allocates a block and lets the worker make it; either must be granted.
  AcquireResult MustAcquire(Peer& peer, const AcquireRequest& request);
  AllocateResult MustAllocate(Peer& peer, Bytes bytes, uint32_t device = 0);
  // Sets a limit as an operator, or as the peer where there is one.
  absl::StatusOr<std::vector<BudgetView>> SetBudget(const SetBudgetRequest& request,
                                                    const Peer* as = nullptr);
  // The account of one layer; empty where there is none.
  BudgetView Budget(Layer layer, uint32_t device, const Peer& peer) const;

  // The worker does its next job, or all of them.
  void WorkOnce(const absl::Status& status = absl::OkStatus());
  void WorkAll();
  // Device 0's worker dies with its jobs, or a new one serves.
  void DropWorker(bool stopped = false);
  void RaiseWorker();
  // A device goes out of service, or its memory is lost.
  void StopDevice(uint32_t device);
  void LoseMemory(uint32_t device, uint64_t generation);
  // What the context worker says of a block that it made.
  static IpcHandle HandleFor(BlockId block);
  // The core looks at the clock.
  void Tick();
  void Gone(const Peer& peer);
  // The process closes its channel; the session's last lifeline is closed.
  void HangUpChannel(const Peer& peer);
  void HangUp(const Peer& peer);
  void LetGo(const Peer& peer, ImportId import);
  absl::StatusOr<ReleaseResult> GiveBack(const Peer& peer, AcquisitionId acquisition, bool if_idle = false);
  void Acknowledge(const Peer& peer, uint64_t number);

  bool Answered(CallId call) const { return replies.contains(call); }
  absl::Status StatusOf(CallId call) const;
  bool Refused(CallId call, Reason reason) const { return IsRefusal(StatusOf(call), reason); }
  std::string Figure(CallId call, const std::string& name) const;
  template <typename Result>
  Result Get(CallId call) const {
    EXPECT_TRUE(Answered(call));
    EXPECT_TRUE(StatusOf(call).ok()) << StatusOf(call);
    return std::get<Result>(*replies.at(call));
  }

  ByteCounts BytesOf(uint32_t device) const { return core->ListDevices().at(device).bytes; }
  PoolView Pool(const std::string& name = "gpu-tests") const { return *core->GetPool(name); }
  static Caller Admin() { return {.admin = true}; }
  // Everything that is shown, as text, but for counts of refusals.
  std::string Books() const;

  std::unique_ptr<Core> core;
  // What a broker that follows would find.
  Rows rows;
  absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  // What the words of pages say.
  std::map<StreamKey, StreamWords> words;
  std::map<ChannelId, PermitWord> permit_words;
  // What came out, in order. Tests take from these as they like.
  std::map<CallId, absl::StatusOr<Response>> replies;
  std::deque<std::variant<CreateBlock, ReleaseBlock>> jobs;
  std::vector<Deliver> deliveries;
  std::vector<ChannelId> closed_channels;
  std::vector<ChannelId> dropped_channels;
  // Of whom there is one.
  std::set<ChannelId> pages;
  std::vector<SessionId> dropped_sessions;
  std::vector<OrderDevice> orders;
  // What the keeper of modules is to do.
  std::deque<ModuleWork> module_work;
  // DevicesChanged effects and records, which last_effects leaves out.
  uint64_t device_changes = 0;
  std::vector<LogRecord> log;
  // Those too; and the leases that are out by them, by kind and id.
  std::vector<LeaseRecord> leases;
  std::map<std::pair<LeaseKind, uint64_t>, LeaseRecord> open_leases;
  // The kinds of the last step's effects, in order: "deliver reply create release order".
  std::string last_effects;

 private:
  void MakeCore();
  // Writes down what the last steps changed, and expects it to be all.
  void Keep();
  void Carry(const Effects& effects);
  void NoteLease(const LeaseRecord& lease);
  // Expects the leases that are out to be those that were told of.
  void CheckLeases() const;
  Config config_;
  // What was there before may be made and sent again.
  bool resuming_ = false;
  std::optional<Peer> operator_;
  uint64_t last_id_ = 1'000;
  uint64_t last_call_ = 0;
  uint64_t last_effect_ = 0;
};

}  // namespace berth::core

#endif  // DAEMON_CORE_CORE_HARNESS_H_
