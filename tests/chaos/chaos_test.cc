// Every process of the daemon and of its clients is killed and stopped at random under load: nothing is lost, nothing
// is granted twice, every byte is as written.
//
// BERTH_CHAOS_SECONDS sets the duration (120), BERTH_CHAOS_ROUNDS a number of rounds instead (tests/chaos/chaos.h). 10
// rounds are 50 deaths of brokers, 20 of workers, 10 of supervisors, and 5 upgrades: the default on a GPU, with
// $BERTH_GPU_TEST_BACKEND=cuda. BERTH_CHAOS_STOP_SECONDS sets how long the daemon is also stopped and killed as a whole
// (30). BERTH_FAULT_SEED replays the random choices of a run.

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

TEST(ChaosTest, RandomDeathsLoseNothingAndGrantNothingTwice) {
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

TEST(ChaosTest, DaemonStopsLoseAndDoubleNothing) {
  const uint64_t seed = SeedFromEnvironment("BERTH_FAULT_SEED");
  const absl::Time end = absl::Now() + absl::Seconds(FromEnvironment("BERTH_CHAOS_STOP_SECONDS", 30));
  Chaos chaos({.seed = seed, .stops = true});
  do {
    chaos.Round();
  } while (absl::Now() < end && !HasFailure());
  if (!HasFailure()) chaos.Finish();
  std::cout << chaos.Describe() << std::endl;
  if (HasFailure()) ADD_FAILURE() << "BERTH_FAULT_SEED=" << seed;
}

}  // namespace
}  // namespace berth::testing
