// Permits cached between uses, over many random runs: processes that cache, use, put back, stop anywhere, hang up and
// die; operators who revoke and change caps; time. BERTH_SIM_SEED replays one.

#include <iostream>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/testing/core_harness.h"
#include "gtest/gtest.h"
#include "tests/support/environment.h"

namespace berth::core {
namespace {

using PutBack = PermitSlot::PutBack;

class CachedPermits {
 public:
  explicit CachedPermits(uint64_t seed) : random_(seed) {
    for (int i = 0; i < 6; ++i) Join();
  }

  void Run(int steps) {
    for (step_ = 0; step_ < steps && !::testing::Test::HasFailure(); ++step_) {
      if (Chance(90)) {
        Act(Some());
      } else if (Chance(40)) {
        PassTime();
      } else {
        Operate();
      }
      Check();
    }
  }
  void Finish() {
    finishing_ = true;
    while (!processes_.empty()) {
      Die(processes_.begin());
      Check();
    }
    for (const Peer& peer : ended_) h_.HangUp(peer);
    EXPECT_EQ(h_.Pool().out, 0u);
    EXPECT_EQ(h_.Pool().waiters, 0u);
    EXPECT_TRUE(h_.pages.empty());
    EXPECT_EQ(h_.core->next_deadline(), absl::InfiniteFuture());
  }

  uint64_t taken_again = 0, taken_back = 0, looks = 0, stopped = 0, revoked = 0, drained = 0;

 private:
  struct Process {
    Peer peer;
    bool keeps = false;
    // Takes no step until it is resumed.
    bool stopped = false;
    std::optional<CallId> asked;
    // The permit that it believes to use, and the permit that it cached last.
    std::optional<AcquireResult> uses;
    std::optional<AcquireResult> cached;
    // The process has put back a permit that a waiter needs, and has not notified the daemon yet.
    bool owes_look = false;
    bool hung_up = false;
  };
  using At = std::map<uint64_t, Process>::iterator;

  bool Chance(uint64_t percent) { return random_() % 100 < percent; }
  At Some() { return std::next(processes_.begin(), static_cast<int64_t>(random_() % processes_.size())); }

  void Join() {
    Process& process = processes_[++last_];
    process.peer = h_.Open(static_cast<uint32_t>(1000 + random_() % 3));
    process.keeps = Chance(80);
    if (!process.keeps) return;
    EXPECT_TRUE(h_.StatusOf(h_.KeepPermits(process.peer)).ok());
  }

  // Whether the daemon has the permit granted, so that its user may use it.
  bool Out(const AcquireResult& permit) {
    for (const PermitView& view : h_.core->ListPermits(h_.Admin(), "")) {
      if (view.id == permit.permit) return true;
    }
    return false;
  }

  void Act(At at) {
    Process& process = at->second;
    Hear(process);
    if (Chance(1)) return Die(at);
    if (process.stopped ? Chance(10) : Chance(2)) {
      process.stopped = !process.stopped;
      stopped += process.stopped ? 1 : 0;
    }
    if (process.stopped) return;
    if (process.hung_up) return;
    if (Chance(1)) {
      process.hung_up = true;
      process.asked.reset();
      process.owes_look = false;
      return h_.HangUpChannel(process.peer);
    }
    if (process.owes_look && Chance(50)) {
      process.owes_look = false;
      ++looks;
      h_.ReleaseIfIdle(process.peer, process.cached->acquisition);
    } else if (process.uses.has_value()) {
      PutDown(process);
    } else if (!process.asked.has_value()) {
      PickUp(process);
    } else if (Chance(5)) {
      h_.Forget(process.peer, process.peer.sequence);
      process.asked.reset();
    }
  }

  // Receives a grant.
  void Hear(Process& process) {
    if (!process.asked.has_value() || !h_.Answered(*process.asked)) return;
    if (h_.StatusOf(*process.asked).ok()) {
      process.uses = h_.Get<AcquireResult>(*process.asked);
      if (process.uses->cached) process.cached = process.uses;
    }
    process.asked.reset();
  }

  void PickUp(Process& process) {
    if (process.cached.has_value() && Slot(process)->Take(process.cached->permit.value())) {
      EXPECT_TRUE(Out(*process.cached)) << "what is taken is out no more";
      process.uses = process.cached;
      ++taken_again;
      return;
    }
    process.asked = h_.Acquire(process.peer, {.pool = "gpu-tests",
                                              .holder_key = absl::StrCat("use ", ++last_),
                                              .wait = Chance(80),
                                              .keep = process.keeps});
    Hear(process);
  }

  void PutDown(Process& process) {
    const AcquireResult permit = *std::exchange(process.uses, std::nullopt);
    if (!permit.cached || Chance(5)) {
      h_.Release(process.peer, permit.acquisition);
      return;
    }
    const PutBack put = Slot(process)->Put(permit.permit.value());
    if (put == PutBack::kWanted) process.owes_look = true;
    if (put == PutBack::kNotOurs) h_.Release(process.peer, permit.acquisition);
  }

  PermitSlot* Slot(Process& process) { return &h_.permit_slots.at(process.peer.channel); }

  void Die(At at) {
    Process& process = at->second;
    h_.Gone(process.peer);
    if (Chance(50)) {
      h_.HangUp(process.peer);
    } else {
      ended_.push_back(process.peer);
    }
    processes_.erase(at);
    if (!finishing_ && processes_.size() < 4) Join();
    // A session that continues holds the permits that its dead process used, as long as it continues.
    if (ended_.size() > 1) {
      h_.HangUp(ended_.front());
      ended_.erase(ended_.begin());
    }
  }

  void PassTime() {
    h_.now += absl::Milliseconds(random_() % 200);
    const absl::Time due = h_.core->next_deadline();
    if (due != absl::InfiniteFuture()) h_.now = std::max(h_.now, due);
    h_.Tick();
    if (h_.Pool().waiters == 0) return;
    // A permit that any process has put back is granted to the waiters.
    for (const PermitView& view : h_.core->ListPermits(h_.Admin(), "gpu-tests")) {
      EXPECT_FALSE(view.cached) << "somebody waits for what is idle";
    }
    ++taken_back;
  }

  void Operate() {
    if (Chance(50)) {
      h_.Do([&](Core& core, Effects* effects) {
        EXPECT_TRUE(core.SetPool(h_.now, "gpu-tests", {.cap = 1 + random_() % 3}, effects).ok());
      });
      const PoolView pool = h_.Pool();
      if (pool.out > pool.config.cap) ++drained;
      // No idle permit stays out beyond a cap.
      EXPECT_TRUE(pool.out <= pool.config.cap || pool.cached == 0);
    } else if (const auto out = h_.core->ListPermits(h_.Admin(), "gpu-tests"); !out.empty() && Chance(30)) {
      ++revoked;
      const PermitId permit = out[random_() % out.size()].id;
      h_.Do([&](Core& core, Effects* effects) {
        EXPECT_TRUE(core.RevokePermit(h_.now, permit, effects).ok());
      });
    }
  }

  void Check() {
    uint64_t in_use = 0;
    for (auto& [number, process] : processes_) {
      Hear(process);
      in_use += process.uses.has_value() && Out(*process.uses) ? 1 : 0;
    }
    const PoolView pool = h_.Pool();
    EXPECT_LE(in_use, pool.out) << "step " << step_;
    EXPECT_TRUE(pool.out <= pool.config.cap || pool.out <= out_before_) << "over the cap, step " << step_;
    out_before_ = pool.out;
  }

  CoreHarness h_;
  std::mt19937_64 random_;
  std::map<uint64_t, Process> processes_;
  // Sessions without a process, whose lifeline is open.
  std::vector<Peer> ended_;
  uint64_t last_ = 0;
  uint64_t out_before_ = 0;
  int step_ = 0;
  bool finishing_ = false;
};

TEST(CachedPermitsSimTest, CachedUnitsStayExclusiveAndReachWaiters) {
  const uint64_t one = testing::FromEnvironment("BERTH_SIM_SEED", 0);
  const uint64_t last = one != 0 ? one : testing::GateOrSoak(5, 30);
  uint64_t sums[6] = {};
  for (uint64_t seed = one != 0 ? one : 1; seed <= last; ++seed) {
    CachedPermits run(seed);
    run.Run(1'500);
    run.Finish();
    ASSERT_FALSE(HasFailure()) << "replay: BERTH_SIM_SEED=" << seed;
    const uint64_t counts[6] = {run.taken_again, run.taken_back, run.looks,
                                run.stopped,     run.revoked,    run.drained};
    for (int i = 0; i < 6; ++i) sums[i] += counts[i];
  }
  std::cout << sums[0] << " taken again, " << sums[1] << " looks while somebody waited, " << sums[2]
            << " told, " << sums[3] << " stopped, " << sums[4] << " revoked, " << sums[5] << " drained\n";
  if (one != 0) return;
  // Runs in which these never occur test nothing.
  for (const uint64_t sum : sums) EXPECT_GT(sum, 2 * last - 10);
}

}  // namespace
}  // namespace berth::core
