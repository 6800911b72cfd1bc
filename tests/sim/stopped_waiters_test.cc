// Runs requests of each kind that waits through stops and continuations of their processes at any moment, also between
// a grant and its take-up. After every step: nothing is used twice, equal requests are granted in the order of arrival,
// and nothing is idle for long while a running process waits for it. BERTH_SIM_SEED replays one seed.

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/testing/core_harness.h"
#include "tests/support/environment.h"

namespace berth::core {
namespace {

using Taking = TakeUpWords::Taking;

// The core's patience for a take-up, and for a process that has to call again; and the longest step of the clock.
constexpr absl::Duration kPatience = absl::Milliseconds(500);
constexpr absl::Duration kLongestStep = absl::Milliseconds(60);
constexpr absl::Duration kLongestIdle = absl::Milliseconds(500 + 2 * 60);
// Longest time for which a broker keeps bytes for a request of an earlier broker.
constexpr absl::Duration kAbsence = absl::Seconds(5);

enum class Kind { kPermit, kGang, kGangWithBytes, kPlan, kBytes };

// Units of the pools "gpu-tests" and "wide", and MiB of device 0.
struct Amount {
  uint64_t tests = 0;
  uint64_t wide = 0;
  uint64_t mib = 0;

  void Add(const Amount& other) {
    tests += other.tests;
    wide += other.wide;
    mib += other.mib;
  }
  bool FitsIn(const Amount& whole, const Amount& used) const {
    return used.tests + tests <= whole.tests && used.wide + wide <= whole.wide && used.mib + mib <= whole.mib;
  }
};

Amount AmountOf(Kind kind) {
  switch (kind) {
    case Kind::kPermit:
    case Kind::kPlan:
      return {.tests = 1};
    case Kind::kGang:
      return {.tests = 1, .wide = 1};
    case Kind::kGangWithBytes:
      return {.wide = 1, .mib = 6};
    case Kind::kBytes:
      return {.mib = 6};
  }
}

struct Options {
  std::vector<Kind> kinds = {Kind::kPermit};
  uint64_t cap = 1;
  size_t processes = 5;
  // The daemon can see which processes are stopped.
  bool visible = true;
  // The processes are in a PID namespace that the daemon does not see.
  bool unseen = false;
  bool restarts = false;
  // Units and bytes are reserved for a request that two others have passed.
  bool reserves = false;

  bool Has(Kind kind) const { return std::find(kinds.begin(), kinds.end(), kind) != kinds.end(); }
};

Config ConfigOf(const Options& options) {
  Config config = CoreHarness::DefaultConfig();
  config.pools[0].cap = options.cap;
  config.pools[0].no_device_cap = 0;
  config.pools[1].cap = 2;
  config.limits.passes_before_hold = config.limits.passes_before_reserve = options.reserves ? 2 : 1'000'000;
  return config;
}

class StoppedWaiters {
 public:
  StoppedWaiters(uint64_t seed, const Options& options)
      : options_(options), whole_{.tests = options.cap, .wide = 2, .mib = 16}, stops_(seed % 2 == 1 ? 25 : 6),
        random_(seed), h_(ConfigOf(options)) {
    h_.unseen = options.unseen;
    for (size_t i = 0; i < options.processes; ++i) {
      Process& process = processes_.emplace_back(Process{.peer = h_.Open()});
      // From the acknowledgement of its page on, a process takes its grants up.
      EXPECT_TRUE(h_.StatusOf(h_.KeepPermits(process.peer)).ok());
      Acknowledge(process);
    }
  }

  void Step() {
    ++steps_;
    Process& process = processes_[Draw(processes_.size())];
    if (Chance(stops_)) {
      process.stopped = !process.stopped;
      process.was_stopped = true;
      for (Process& each : processes_) each.fits_since.reset();
    } else if (options_.restarts && Chance(2)) {
      Restart();
    } else if (Chance(30)) {
      PassTime();
    } else if (!process.stopped) {
      Act(process);
    }
    Settle();
    CheckOrder();
    CheckIdle();
  }

  // All processes continue, and get what they wait for.
  void Finish() {
    for (Process& process : processes_) process.stopped = false;
    for (int round = 0; round < 50 * static_cast<int>(processes_.size()); ++round) {
      for (Process& process : processes_) {
        if (process.state == State::kHolding) Release(process);
        if (process.state == State::kWaiting) Read(process);
        Settle();
      }
      PassTime();
    }
    for (const Process& process : processes_) EXPECT_EQ(process.state, State::kIdle) << "a waiter was never served";
    for (const char* const pool : {"gpu-tests", "wide"}) {
      EXPECT_EQ(h_.Pool(pool).out, 0u);
      EXPECT_EQ(h_.Pool(pool).waiters, 0u);
    }
    EXPECT_TRUE(h_.core->ListPlans(h_.Admin()).empty());
    EXPECT_TRUE(h_.core->ListReservations(h_.Admin()).empty());
    EXPECT_EQ(h_.BytesOf(0), ByteCounts());
  }

  uint64_t withdrawn() const { return withdrawn_; }
  uint64_t skipped() const { return skipped_; }
  uint64_t grants(Kind kind) const { return grants_.contains(kind) ? grants_.at(kind) : 0; }

 private:
  enum class State { kIdle, kWaiting, kHolding };
  struct Process {
    Peer peer;
    bool stopped = false;
    State state = State::kIdle;
    Kind kind = Kind::kPermit;
    uint64_t sequence = 0;
    // Order of the first attempt.
    uint64_t arrival = 0;
    std::optional<CallId> call;
    // The step that sent it.
    uint64_t sent = 0;
    // The process was stopped since it sent the call; and the time of the call's answer.
    bool was_stopped = false;
    std::optional<absl::Time> answered;
    // The process waits, and what it waits for is free.
    std::optional<absl::Time> fits_since;
    // The leases that it holds.
    std::vector<AcquisitionId> acquisitions;
    ReservationId reservation;
    PlanId plan;
    std::optional<AllocateResult> block;
    uint64_t delivered = 0;
    uint64_t acknowledged = 0;
  };

  uint64_t Draw(uint64_t below) { return std::uniform_int_distribution<uint64_t>(0, below - 1)(random_); }
  bool Chance(uint64_t percent) { return Draw(100) < percent; }

  // ---- Actions of processes ---------------------------------------------------------------------------------

  void Send(Process& process) {
    const RequestTag tag = {
        .sequence = process.sequence, .answered_below = process.sequence, .takes_up = true};
    const std::string key = absl::StrCat("key ", process.sequence);
    process.was_stopped = false;
    process.sent = steps_;
    process.answered.reset();
    process.call = h_.Ask([&](Core& core, CallId call, Effects* effects) {
      const Caller caller = process.peer.caller();
      switch (process.kind) {
        case Kind::kPermit:
          return core.Acquire(h_.now, call, caller, tag,
                              {.pool = "gpu-tests", .holder_key = key, .independent = true}, effects);
        case Kind::kGang:
          return core.AcquireGang(
              h_.now, call, caller, tag,
              {.members = {{.pool = "gpu-tests"}, {.pool = "wide"}}, .holder_key = key, .independent = true}, effects);
        case Kind::kGangWithBytes:
          return core.AcquireGang(h_.now, call, caller, tag,
                                  {.members = {{.pool = "wide"}},
                                   .reserve = {{.device = 0, .bytes = MiB(AmountOf(process.kind).mib)}},
                                   .holder_key = key,
                                   .independent = true},
                                  effects);
        case Kind::kPlan:
          return core.MakePlan(h_.now, call, caller, tag,
                               {.units = 4, .max_devices = 1, .pool = "gpu-tests", .independent = true}, effects);
        case Kind::kBytes:
          return core.Allocate(h_.now, call, caller, tag,
                               {.bytes = MiB(AmountOf(process.kind).mib), .wait = true}, effects);
      }
    });
  }

  void Act(Process& process) {
    Acknowledge(process);
    switch (process.state) {
      case State::kIdle:
        process.kind = options_.kinds[Draw(options_.kinds.size())];
        process.sequence = ++process.peer.sequence;
        process.arrival = ++arrivals_;
        process.state = State::kWaiting;
        return Send(process);
      case State::kWaiting:
        // The fd of a granted block is on its way.
        if (Chance(5) && !(process.kind == Kind::kBytes && Granted(process))) return Forget(process);
        return Read(process);
      case State::kHolding:
        if (Chance(50)) Release(process);
    }
  }

  void Acknowledge(Process& process) {
    for (const Deliver& deliver : std::exchange(h_.deliveries, {})) {
      for (Process& each : processes_) {
        if (each.peer.channel == deliver.channel) each.delivered = deliver.delivery.number;
      }
    }
    if (process.delivered == process.acknowledged) return;
    process.acknowledged = process.delivered;
    h_.Acknowledge(process.peer, process.acknowledged);
  }

  // Reads the answer, if it has arrived.
  void Read(Process& process) {
    if (!process.call.has_value()) return Send(process);
    if (!h_.Answered(*process.call)) return;
    const absl::Status status = h_.StatusOf(*process.call);
    if (IsRefusal(status, Reason::kProcessStopped)) {
      ++skipped_;
      return Send(process);
    }
    ASSERT_TRUE(status.ok()) << status;
    if (h_.take_up_words[process.peer.channel].Take(process.sequence) == Taking::kWithdrawn) {
      ++withdrawn_;
      // A plan is requested anew, and has lost its place.
      if (process.kind == Kind::kPlan) process.arrival = ++arrivals_;
      return Send(process);
    }
    Hold(process);
    process.call.reset();
    process.state = State::kHolding;
    ++grants_[process.kind];
    Amount held;
    for (const Process& each : processes_) {
      if (each.state == State::kHolding) held.Add(AmountOf(each.kind));
    }
    EXPECT_TRUE(Amount().FitsIn(whole_, held)) << "something is used twice";
    EXPECT_GE(h_.Pool().out, held.tests) << "a unit is lost";
    EXPECT_GE(h_.Pool("wide").out, held.wide) << "a unit is lost";
    EXPECT_GE(h_.BytesOf(0).charged(), MiB(held.mib)) << "bytes are lost";
  }

  // Stores what the answer grants.
  void Hold(Process& process) {
    switch (process.kind) {
      case Kind::kPermit:
        process.acquisitions = {h_.Get<AcquireResult>(*process.call).acquisition};
        return;
      case Kind::kGang:
      case Kind::kGangWithBytes: {
        const GangResult gang = h_.Get<GangResult>(*process.call);
        process.acquisitions.clear();
        for (const AcquireResult& permit : gang.permits) process.acquisitions.push_back(permit.acquisition);
        process.reservation = gang.reservation.has_value() ? gang.reservation->id : ReservationId();
        return;
      }
      case Kind::kPlan:
        process.plan = h_.Get<PlanResult>(*process.call).layout->id;
        return;
      case Kind::kBytes:
        process.block = h_.Get<AllocateResult>(*process.call);
        return;
    }
  }

  void Release(Process& process) {
    process.state = State::kIdle;
    const auto done = [&](CallId call) {
      h_.WorkAll();
      EXPECT_TRUE(h_.StatusOf(call).ok()) << h_.StatusOf(call);
    };
    Acknowledge(process);
    switch (process.kind) {
      case Kind::kPermit:
      case Kind::kGang:
      case Kind::kGangWithBytes:
        for (const AcquisitionId acquisition : process.acquisitions) done(h_.Release(process.peer, acquisition));
        if (process.kind == Kind::kGangWithBytes) done(h_.ReleaseReservation(process.peer, process.reservation));
        return;
      case Kind::kPlan:
        return done(h_.ReleasePlan(process.peer, process.plan));
      case Kind::kBytes:
        return done(h_.Free(process.peer, process.block->block.handle, {process.block->import}));
    }
  }

  void Forget(Process& process) {
    process.state = State::kIdle;
    process.call.reset();
    h_.Forget(process.peer, process.sequence);
  }

  void PassTime() {
    h_.now += absl::Milliseconds(Draw(absl::ToInt64Milliseconds(kLongestStep)));
    while (h_.core->next_deadline() <= h_.now) {
      h_.looked_at.clear();
      h_.Tick();
      if (!options_.visible) continue;
      std::vector<ChannelId> stopped;
      for (const Process& process : processes_) {
        const auto& looked = h_.looked_at;
        const bool seen = std::find(looked.begin(), looked.end(), process.peer.channel) != looked.end();
        if (process.stopped && seen) stopped.push_back(process.peer.channel);
      }
      if (stopped.empty()) continue;
      h_.Do([&](Core& core, Effects* effects) { core.ProcessesStopped(h_.now, stopped, effects); });
    }
  }

  void Restart() {
    h_.Restart();
    restarted_ = h_.now;
    // Calls without an answer are lost. An answer that has arrived may still be read.
    for (Process& process : processes_) {
      process.fits_since.reset();
      if (process.call.has_value() && !h_.Answered(*process.call)) process.call.reset();
    }
  }

  // The worker finishes its jobs, and the answers of the step have arrived.
  void Settle() {
    h_.WorkAll();
    for (Process& process : processes_) {
      const bool answered = process.call.has_value() && h_.Answered(*process.call);
      if (answered && !process.answered.has_value()) process.answered = h_.now;
    }
  }

  // ---- Guarantees -------------------------------------------------------------------------------------------

  // The call waits in the daemon; and it was granted, and the grant was not withdrawn.
  bool Waits(const Process& process) const {
    return process.state == State::kWaiting && process.call.has_value() && !h_.Answered(*process.call);
  }
  bool Granted(const Process& process) {
    return process.state == State::kWaiting && process.call.has_value() && h_.Answered(*process.call) &&
           h_.StatusOf(*process.call).ok() &&
           !h_.take_up_words[process.peer.channel].IsWithdrawn(process.sequence);
  }
  // A process that runs has to call again for its bytes, which are kept for it meanwhile.
  bool Invited(const Process& process) const {
    return process.state == State::kWaiting && process.kind == Kind::kBytes && !process.was_stopped &&
           process.call.has_value() && h_.Answered(*process.call) &&
           h_.Refused(*process.call, Reason::kProcessStopped) && h_.now - *process.answered < kPatience;
  }

  void CheckOrder() {
    // A broker forgets the place of a grant that an earlier broker made.
    if (options_.restarts) return;
    for (const Process& process : processes_) {
      if (!Granted(process) || !judged_.insert(process.call->value()).second) continue;
      for (const Process& earlier : processes_) {
        if (earlier.kind != process.kind || earlier.arrival >= process.arrival) continue;
        // A grant that was due in this step precedes the step's call.
        if (earlier.sent == steps_) continue;
        EXPECT_FALSE(Waits(earlier) || Invited(earlier)) << "a waiter lost its place";
      }
    }
  }

  void CheckIdle() {
    Amount used;
    bool invites = false;
    for (const Process& process : processes_) {
      // A granted block cannot be withdrawn.
      const bool has = Granted(process) && (!process.stopped || process.kind == Kind::kBytes);
      if (process.state == State::kHolding || has || Invited(process)) used.Add(AmountOf(process.kind));
      invites = invites || Invited(process);
    }
    for (Process& process : processes_) {
      const bool able = !process.stopped && Waits(process);
      if (!able || !AmountOf(process.kind).FitsIn(whole_, used) || IsLegitimatelyHeldUp(process, invites)) {
        process.fits_since.reset();
        continue;
      }
      if (!process.fits_since.has_value()) process.fits_since = h_.now;
      // Each stopped process that the daemon cannot see may cost its own patience.
      const absl::Duration longest = options_.visible ? kLongestIdle : kLongestIdle * processes_.size();
      EXPECT_LE(h_.now - *process.fits_since, longest) << "something is idle while a running process waits for it";
    }
  }

  // Whether units or bytes that are free may be reserved for another process that runs.
  bool IsLegitimatelyHeldUp(const Process& process, bool invites) const {
    if (AmountOf(process.kind).mib > 0 && (invites || h_.now < restarted_ + kAbsence)) return true;
    return options_.reserves && std::any_of(processes_.begin(), processes_.end(), [&](const Process& other) {
             return &other != &process && !other.stopped && other.state == State::kWaiting;
           });
  }

  const Options options_;
  const Amount whole_;
  // Percentage of the steps in which a process stops or continues.
  const uint64_t stops_;
  std::mt19937_64 random_;
  CoreHarness h_;
  std::vector<Process> processes_;
  uint64_t arrivals_ = 0;
  uint64_t steps_ = 0;
  absl::Time restarted_ = absl::InfinitePast();
  // Grants whose order was checked.
  std::set<uint64_t> judged_;
  uint64_t withdrawn_ = 0;
  uint64_t skipped_ = 0;
  std::map<Kind, uint64_t> grants_;
};

void Simulate(const Options& options) {
  const uint64_t one = testing::FromEnvironment("BERTH_SIM_SEED", 0);
  const uint64_t seeds = one != 0 ? 1 : testing::GateOrSoak(4, 30);
  uint64_t withdrawn = 0, skipped = 0;
  std::map<Kind, uint64_t> grants;
  for (uint64_t i = 1; i <= seeds; ++i) {
    const uint64_t seed = one != 0 ? one : i;
    SCOPED_TRACE(absl::StrCat("BERTH_SIM_SEED=", seed));
    StoppedWaiters waiters(seed, options);
    for (uint64_t step = testing::GateOrSoak(600, 2'000); step > 0 && !::testing::Test::HasFailure(); --step) {
      waiters.Step();
    }
    if (::testing::Test::HasFailure()) return;
    waiters.Finish();
    withdrawn += waiters.withdrawn();
    skipped += waiters.skipped();
    for (const Kind kind : options.kinds) grants[kind] += waiters.grants(kind);
  }
  for (const auto& [kind, count] : grants) EXPECT_GT(count, 0u) << static_cast<int>(kind);
  EXPECT_EQ(withdrawn > 0, options.kinds != std::vector<Kind>{Kind::kBytes});
  EXPECT_EQ(skipped > 0, options.visible || options.unseen || options.Has(Kind::kBytes));
}

const std::vector<Kind> kAllKinds = {Kind::kPermit, Kind::kGang, Kind::kGangWithBytes, Kind::kPlan, Kind::kBytes};

TEST(StoppedWaitersTest, VisibleStopsCostOnePatience) {
  Simulate({.cap = 1});
  Simulate({.cap = 3, .processes = 9});
}

TEST(StoppedWaitersTest, VisibleStopsOfByteWaitersCostOnePatience) { Simulate({.kinds = {Kind::kBytes}}); }

TEST(StoppedWaitersTest, VisibleStopsOfAllKindsCostOnePatience) {
  Simulate({.kinds = kAllKinds, .cap = 2, .processes = 8});
}

TEST(StoppedWaitersTest, NothingStaysReservedForStoppedWaiter) {
  Simulate({.kinds = kAllKinds, .cap = 2, .processes = 6, .reserves = true});
}

TEST(StoppedWaitersTest, InvisibleStopsNeverUseUnitTwice) { Simulate({.cap = 2, .visible = false}); }

TEST(StoppedWaitersTest, InvisibleStopsOfAllKindsUseNothingTwice) {
  Simulate({.kinds = kAllKinds, .cap = 2, .processes = 6, .visible = false});
}

TEST(StoppedWaitersTest, UnseenStopsOfAllKindsUseNothingTwice) {
  Simulate({.cap = 1, .visible = false, .unseen = true});
  Simulate({.kinds = kAllKinds, .cap = 2, .processes = 6, .visible = false, .unseen = true});
}

TEST(StoppedWaitersTest, UnitsSurviveBrokersDeath) {
  Simulate({.cap = 2, .processes = 6, .restarts = true});
  Simulate({.kinds = kAllKinds, .cap = 2, .processes = 6, .restarts = true});
}

}  // namespace
}  // namespace berth::core
