// Runs a pool's waiters through stops and continuations at any moment, also between a grant and its take-up. After
// every step: no unit is used twice, grants follow the order of arrival, and no unit is idle for long while a running
// process waits. BERTH_SIM_SEED replays one seed.

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/testing/core_harness.h"
#include "tests/support/environment.h"

namespace berth::core {
namespace {

using Taking = TakeUpWords::Taking;

// The longest idle time of a unit: the core's patience for a take-up, and the longest step of the clock.
constexpr absl::Duration kLongestStep = absl::Milliseconds(60);
constexpr absl::Duration kLongestIdle = absl::Milliseconds(500 + 2 * 60);

struct Options {
  uint64_t cap = 1;
  size_t processes = 5;
  // The daemon can see which processes are stopped.
  bool visible = true;
  bool restarts = false;
};

class StoppedWaiters {
 public:
  StoppedWaiters(uint64_t seed, const Options& options) : options_(options), random_(seed) {
    h_.Do([&](Core& core, Effects* effects) {
      EXPECT_TRUE(core.SetPool(h_.now, "gpu-tests", {.cap = options.cap, .no_device_cap = 0}, effects).ok());
    });
    for (size_t i = 0; i < options.processes; ++i) {
      Process& process = processes_.emplace_back(Process{.peer = h_.Open()});
      // From the acknowledgement of its page on, a process takes its grants up.
      EXPECT_TRUE(h_.StatusOf(h_.KeepPermits(process.peer)).ok());
      Acknowledge(process);
    }
  }

  void Step() {
    Process& process = processes_[Draw(processes_.size())];
    if (Chance(25)) {
      process.stopped = !process.stopped;
      if (process.stopped) idle_since_.reset();
    } else if (options_.restarts && Chance(2)) {
      Restart();
    } else if (Chance(30)) {
      PassTime();
    } else if (!process.stopped) {
      Act(process);
    }
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
      }
      PassTime();
    }
    for (const Process& process : processes_) EXPECT_EQ(process.state, State::kIdle) << "a waiter was never served";
    EXPECT_EQ(h_.Pool().out, 0u);
    EXPECT_EQ(h_.Pool().waiters, 0u);
  }

  uint64_t withdrawn() const { return withdrawn_; }
  uint64_t skipped() const { return skipped_; }
  uint64_t grants() const { return grants_; }

 private:
  enum class State { kIdle, kWaiting, kHolding };
  struct Process {
    Peer peer;
    bool stopped = false;
    State state = State::kIdle;
    uint64_t sequence = 0;
    // Order of the first attempt.
    uint64_t arrival = 0;
    std::optional<CallId> call;
    AcquisitionId acquisition;
    uint64_t acknowledged = 0;
  };

  uint64_t Draw(uint64_t below) { return std::uniform_int_distribution<uint64_t>(0, below - 1)(random_); }
  bool Chance(uint64_t percent) { return Draw(100) < percent; }

  void Send(Process& process) {
    const RequestTag tag = {
        .sequence = process.sequence, .answered_below = process.sequence, .takes_up = true};
    process.call = h_.Ask([&](Core& core, CallId call, Effects* effects) {
      core.Acquire(h_.now, call, process.peer.caller(), tag,
                   {.pool = "gpu-tests", .holder_key = absl::StrCat("key ", process.sequence), .independent = true},
                   effects);
    });
  }

  void Act(Process& process) {
    Acknowledge(process);
    switch (process.state) {
      case State::kIdle:
        process.sequence = ++process.peer.sequence;
        process.arrival = ++arrivals_;
        process.state = State::kWaiting;
        return Send(process);
      case State::kWaiting:
        if (Chance(5)) return Forget(process);
        return Read(process);
      case State::kHolding:
        if (Chance(50)) Release(process);
    }
  }

  void Acknowledge(Process& process) {
    uint64_t last = process.acknowledged;
    for (const Deliver& deliver : h_.deliveries) {
      if (deliver.channel == process.peer.channel) last = std::max(last, deliver.delivery.number);
    }
    if (last == process.acknowledged) return;
    process.acknowledged = last;
    h_.Acknowledge(process.peer, last);
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
      return Send(process);
    }
    process.acquisition = h_.Get<AcquireResult>(*process.call).acquisition;
    process.call.reset();
    process.state = State::kHolding;
    ++grants_;
    const auto holds = [](const Process& each) { return each.state == State::kHolding; };
    EXPECT_LE(std::count_if(processes_.begin(), processes_.end(), holds), options_.cap) << "a unit is used twice";
    EXPECT_GE(h_.Pool().out, std::count_if(processes_.begin(), processes_.end(), holds)) << "a unit is lost";
  }

  void Release(Process& process) {
    process.state = State::kIdle;
    EXPECT_TRUE(h_.StatusOf(h_.Release(process.peer, process.acquisition)).ok());
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
    idle_since_.reset();
    // Calls without an answer are lost. An answer that has arrived may still be read.
    for (Process& process : processes_) {
      if (process.call.has_value() && !h_.Answered(*process.call)) process.call.reset();
    }
  }

  // The call waits in the daemon.
  bool Waits(const Process& process) const {
    return process.state == State::kWaiting && process.call.has_value() && !h_.Answered(*process.call);
  }

  void CheckOrder() {
    // A broker forgets the place of a grant that an earlier broker made.
    if (options_.restarts) return;
    for (const Process& process : processes_) {
      if (process.state != State::kWaiting || !process.call.has_value() || Waits(process)) continue;
      if (!h_.StatusOf(*process.call).ok() || !judged_.insert(process.call->value()).second) continue;
      for (const Process& earlier : processes_) {
        EXPECT_FALSE(earlier.arrival < process.arrival && Waits(earlier)) << "a waiter lost its place";
      }
    }
  }

  void CheckIdle() {
    uint64_t used = 0;
    bool waits = false;
    for (const Process& process : processes_) {
      const bool granted = process.state == State::kWaiting && process.call.has_value() &&
                           h_.Answered(*process.call) && h_.StatusOf(*process.call).ok();
      used += process.state == State::kHolding || (granted && !process.stopped) ? 1 : 0;
      waits = waits || (!process.stopped && Waits(process));
    }
    if (used >= options_.cap || !waits) return idle_since_.reset();
    if (!idle_since_.has_value()) idle_since_ = h_.now;
    // Each stopped process that the daemon cannot see may cost its own patience.
    const absl::Duration longest = options_.visible ? kLongestIdle : kLongestIdle * processes_.size();
    EXPECT_LE(h_.now - *idle_since_, longest) << "a unit is idle while a running process waits";
  }

  const Options options_;
  std::mt19937_64 random_;
  CoreHarness h_;
  std::vector<Process> processes_;
  uint64_t arrivals_ = 0;
  std::optional<absl::Time> idle_since_;
  // Grants whose order was checked.
  std::set<uint64_t> judged_;
  uint64_t withdrawn_ = 0;
  uint64_t skipped_ = 0;
  uint64_t grants_ = 0;
};

void Simulate(const Options& options) {
  const uint64_t one = testing::FromEnvironment("BERTH_SIM_SEED", 0);
  const uint64_t seeds = one != 0 ? 1 : testing::GateOrSoak(4, 200);
  uint64_t withdrawn = 0, skipped = 0, grants = 0;
  for (uint64_t i = 1; i <= seeds; ++i) {
    const uint64_t seed = one != 0 ? one : i;
    SCOPED_TRACE(absl::StrCat("BERTH_SIM_SEED=", seed));
    StoppedWaiters waiters(seed, options);
    for (uint64_t step = testing::GateOrSoak(600, 4'000); step > 0 && !::testing::Test::HasFailure(); --step) {
      waiters.Step();
    }
    if (::testing::Test::HasFailure()) return;
    waiters.Finish();
    withdrawn += waiters.withdrawn();
    skipped += waiters.skipped();
    grants += waiters.grants();
  }
  EXPECT_GT(grants, 0u);
  EXPECT_GT(withdrawn, 0u);
  EXPECT_EQ(skipped > 0, options.visible);
}

TEST(StoppedWaitersTest, VisibleStopsCostOnePatience) {
  Simulate({.cap = 1});
  Simulate({.cap = 3, .processes = 9});
}

TEST(StoppedWaitersTest, InvisibleStopsNeverUseUnitTwice) { Simulate({.cap = 2, .visible = false}); }

TEST(StoppedWaitersTest, UnitsSurviveBrokersDeath) { Simulate({.cap = 2, .processes = 6, .restarts = true}); }

}  // namespace
}  // namespace berth::core
