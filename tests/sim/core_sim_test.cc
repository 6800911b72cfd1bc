// Runs the simulation over a few seeds. BERTH_SIM_SEED replays one, BERTH_SIM_STEPS runs it longer.

#include <cstdlib>
#include <iostream>

#include "absl/strings/numbers.h"
#include "gtest/gtest.h"
#include "tests/sim/simulation.h"

namespace berth::core {
namespace {

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  uint64_t value;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

void Simulate(const Simulation::Options& options, uint64_t steps, Simulation::Counts* sum) {
  Simulation simulation(options);
  simulation.Run(steps);
  simulation.Finish();
  ASSERT_TRUE(simulation.status().ok())
      << simulation.status().message() << "\nreplay: BERTH_SIM_SEED=" << options.seed
      << " BERTH_SIM_STEPS=" << steps;
  const Simulation::Counts& counts = simulation.counts();
  sum->sessions += counts.sessions;
  sum->grants += counts.grants;
  sum->nested += counts.nested;
  sum->allocations += counts.allocations;
  sum->imports += counts.imports;
  sum->cancelled += counts.cancelled;
  sum->undone += counts.undone;
  sum->replayed += counts.replayed;
  sum->quarantined += counts.quarantined;
  sum->worker_deaths += counts.worker_deaths;
}

TEST(CoreSimTest, EveryPromiseHoldsInEveryRunAndEverythingComesBack) {
  const uint64_t one = FromEnvironment("BERTH_SIM_SEED", 0);
  const uint64_t steps = FromEnvironment("BERTH_SIM_STEPS", 15'000);
  Simulation::Counts sum;
  for (uint64_t seed = one == 0 ? 1 : one; seed <= (one == 0 ? 24 : one); ++seed) {
    Simulate({.seed = seed}, steps, &sum);
    if (HasFatalFailure()) return;
  }
  std::cout << sum.sessions << " sessions, " << sum.grants << " grants, " << sum.nested << " nested, "
            << sum.allocations << " allocations, " << sum.imports << " imports, " << sum.quarantined
            << " quarantined, " << sum.cancelled << " cancelled, " << sum.undone << " undone, "
            << sum.replayed << " replayed, " << sum.worker_deaths << " worker deaths\n";
  if (one != 0) return;
  // A run that meets none of these tests nothing.
  EXPECT_GT(sum.sessions, 1'000);
  EXPECT_GT(sum.grants, 1'000);
  EXPECT_GT(sum.nested, 100);
  EXPECT_GT(sum.allocations, 1'000);
  EXPECT_GT(sum.imports, 100);
  EXPECT_GT(sum.quarantined, 100);
  EXPECT_GT(sum.cancelled, 100);
  EXPECT_GT(sum.undone, 100);
  EXPECT_GT(sum.replayed, 100);
  EXPECT_GT(sum.worker_deaths, 50);
}

}  // namespace
}  // namespace berth::core
