// Every process of the daemon's and of its clients' is killed and stopped at random under load: nothing is lost,
// nothing is out twice, every byte is what was written.
//
// BERTH_CHAOS_SECONDS sets for how long (120), BERTH_CHAOS_ROUNDS how many rounds it is instead (tests/chaos/chaos.h),
// of which 10 are 50 deaths of brokers, 20 of workers, 10 of vaults, and 5 upgrades: what $BERTH_GPU_TEST_BACKEND=cuda
// plays on a GPU where neither is set. BERTH_FAULT_SEED replays the draws of a run.

#include <stdlib.h>

#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/chaos/chaos.h"
#include "tests/support/environment.h"

namespace berth::testing {
namespace {

TEST(ChaosTest, WhateverDiesNothingIsLostAndNothingIsOutTwice) {
  const char* const backend = getenv("BERTH_GPU_TEST_BACKEND");
  ChaosOptions options = {.seed = SeedFromEnvironment("BERTH_FAULT_SEED")};
  if (backend != nullptr) options.backend = backend;
  const bool timed = options.backend == "host" || getenv("BERTH_CHAOS_SECONDS") != nullptr;
  const uint64_t rounds = FromEnvironment("BERTH_CHAOS_ROUNDS", timed ? 0 : 10);
  const absl::Time end = absl::Now() + absl::Seconds(FromEnvironment("BERTH_CHAOS_SECONDS", 120));
  Chaos chaos(options);
  for (uint64_t round = 0; (rounds > 0 ? round < rounds : absl::Now() < end) && !HasFailure(); ++round) chaos.Round();
  if (!HasFailure()) chaos.Finish();
  std::cout << chaos.Describe() << std::endl;
  if (HasFailure()) ADD_FAILURE() << "BERTH_FAULT_SEED=" << options.seed;
}

}  // namespace
}  // namespace berth::testing
