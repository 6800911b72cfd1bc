// The shares of two users that always have waiters, while processes of one user stop and continue at random. The daemon
// cannot see the stops, so stopped processes are granted units that they do not take up. BERTH_SIM_SEED replays one
// seed.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "daemon/core/testing/core_harness.h"
#include "tests/sim/seeds.h"
#include "tests/support/environment.h"

namespace berth::core {
namespace {

using Taking = TakeUpWords::Taking;

constexpr uint32_t kStops = 1001;
constexpr uint32_t kRuns = 1002;
constexpr size_t kProcesses = 8;
// More than the units of the pool, so that a running process always waits.
constexpr size_t kRunning = 4;

struct Process {
  Peer peer;
  uint32_t uid = 0;
  uint64_t units = 1;
  bool stopped = false;
  std::optional<CallId> call;
  // Set while the process holds a permit.
  std::optional<AcquisitionId> held;
};

class UntakenShares {
 public:
  UntakenShares(uint64_t cap, const std::map<uint32_t, uint32_t>& weights) {
    h_.Do([&](Core& core, Effects* effects) {
      EXPECT_TRUE(core.SetPool(h_.now, "gpu-tests", {.cap = cap, .weights = weights}, effects).ok());
    });
    for (size_t i = 0; i < 2 * kProcesses; ++i) {
      const uint32_t uid = i % 2 == 0 ? kStops : kRuns;
      Process& process = processes_.emplace_back(Process{.peer = h_.Open(uid), .uid = uid});
      process.peer.takes_up = true;
      EXPECT_TRUE(h_.StatusOf(h_.KeepPermits(process.peer)).ok());
      for (const Deliver& deliver : h_.deliveries) {
        if (deliver.channel == process.peer.channel) h_.Acknowledge(process.peer, deliver.delivery.number);
      }
    }
  }

  template <typename Draw>
  void Step(Draw& draw) {
    Process& toggled = processes_[2 * draw(kProcesses)];
    if (toggled.stopped || (running_ > kRunning && draw(2) == 0)) {
      toggled.stopped = !toggled.stopped;
      running_ += toggled.stopped ? -1 : 1;
    }
    h_.now += absl::Milliseconds(draw(300));
    while (h_.core->next_deadline() <= h_.now) h_.Tick();
    Process& released = processes_[draw(processes_.size())];
    if (released.held.has_value()) {
      h_.Release(released.peer, *released.held);
      released.held.reset();
      released.call.reset();
    }
    for (Process& process : processes_) {
      if (!process.stopped && !process.held.has_value()) Act(process, 1 + draw(2));
    }
  }

  std::map<uint32_t, double> taken;
  double all = 0;
  uint64_t withdrawn = 0;

 private:
  void Act(Process& process, uint64_t units) {
    if (!process.call.has_value()) {
      process.units = units;
      ++process.peer.sequence;
      return Send(process);
    }
    if (!h_.Answered(*process.call)) return;
    if (h_.Refused(*process.call, Reason::kProcessStopped)) return Send(process);
    ASSERT_TRUE(h_.StatusOf(*process.call).ok()) << h_.StatusOf(*process.call);
    if (h_.take_up_words[process.peer.channel].Take(process.peer.sequence) == Taking::kWithdrawn) {
      ++withdrawn;
      return Send(process);
    }
    process.held = h_.Get<AcquireResult>(*process.call).acquisition;
    taken[process.uid] += static_cast<double>(process.units);
    all += static_cast<double>(process.units);
  }
  void Send(Process& process) {
    const uint64_t sequence = process.peer.sequence;
    process.call = h_.Ask([&](Core& core, CallId call, Effects* effects) {
      core.Acquire(h_.now, call, process.peer.caller(),
                   {.sequence = sequence, .answered_below = sequence, .takes_up = true},
                   {.pool = "gpu-tests",
                    .units = process.units,
                    .holder_key = absl::StrCat("key ", sequence),
                    .independent = true},
                   effects);
    });
  }

  CoreHarness h_;
  std::vector<Process> processes_;
  // Processes of the user kStops that run.
  size_t running_ = kProcesses;
};

TEST(UntakenSharesTest, TakenUnitsFollowWeightsWithin5Percent) {
  sim::Seeds(20, [](auto draw) {
    std::map<uint32_t, uint32_t> weights;
    for (const uint32_t uid : {kStops, kRuns}) weights[uid] = 1 + draw(4);
    UntakenShares shares(2 + draw(2), weights);
    const double enough = testing::GateOrSoak(600, 3'000);
    while (shares.all < enough && !::testing::Test::HasFailure()) shares.Step(draw);
    const double due = static_cast<double>(weights.at(kStops)) / (weights.at(kStops) + weights.at(kRuns));
    EXPECT_NEAR(shares.taken[kStops], due * shares.all, 0.05 * due * shares.all);
    EXPECT_GT(shares.withdrawn, 0.1 * shares.taken[kStops]) << "too few stops to matter";
  });
}

}  // namespace
}  // namespace berth::core
