// Isolation: no tenant ever reads a byte that another one wrote. Processes of several users lease blocks over and over,
// of sizes that fit each other, ready ones too; each finds every byte empty, fills it all, and gives it back, or is
// killed with it; brokers, vaults and workers are killed in between.
//
// BERTH_CANARY_CYCLES sets how many blocks (800, in the soak 2,500; with $BERTH_GPU_TEST_BACKEND=cuda 1,000),
// BERTH_FAULT_SEED replays the draws of a run. It takes root, for the users.

#include <signal.h>
#include <stdlib.h>

#include <cstdint>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/actor_handle.h"
#include "tests/support/environment.h"
#include "tests/support/test_daemon.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr uint64_t kAtOnce = 25;
constexpr uid_t kUsers[] = {1001, 1002, 1003, 1004};

class CanaryTest : public ::testing::Test {
 protected:
  CanaryTest()
      : backend_(getenv("BERTH_GPU_TEST_BACKEND") == nullptr ? "host" : getenv("BERTH_GPU_TEST_BACKEND")),
        seed_(SeedFromEnvironment("BERTH_FAULT_SEED")),
        random_(seed_) {}
  void TearDown() override {
    if (HasFailure()) ADD_FAILURE() << "BERTH_FAULT_SEED=" << seed_;
  }

  std::unique_ptr<Actor> Start(const TestDaemon& daemon, uid_t user) {
    auto actor =
        std::make_unique<Actor>(daemon, ActorOptions{.uid = user, .program = "tests/chaos/chaos_client"});
    actor->Do(absl::StrCat("setup ", random_(), " 1"));
    return actor;
  }

  const std::string backend_;
  const uint64_t seed_;
  std::mt19937_64 random_;
};

TEST_F(CanaryTest, NobodyReadsWhatAnotherOneWrote) {
  if (!IsRoot()) GTEST_SKIP() << "it takes root to be several users";
  const uint64_t cycles = FromEnvironment("BERTH_CANARY_CYCLES", backend_ == "host" ? ByLane(800, 2'500) : 1'000);
  TestDaemon daemon({.flags = {"--warm-blocks=2"}, .backend = backend_});
  std::vector<std::unique_ptr<Actor>> actors;
  for (const uid_t user : kUsers) actors.push_back(Start(daemon, user));
  uint64_t done = 0;
  uint64_t killed = 0;
  for (uint64_t round = 1; done < cycles; ++round) {
    for (const auto& actor : actors) actor->Tell(absl::StrCat("reuse ", kAtOnce));
    if (round % 8 == 0) daemon.KillBroker();
    if (round % 40 == 0) {
      const std::vector<pid_t> workers = daemon.workers();
      if (!workers.empty()) ::kill(workers[0], SIGKILL);
    }
    // One of them wherever it is by now, with all that it has filled.
    const size_t victim = random_() % actors.size();
    if (round % 2 == 0) {
      actors[victim]->Kill();
      ++killed;
    }
    for (size_t i = 0; i < actors.size(); ++i) {
      if (round % 2 == 0 && i == victim) continue;
      ASSERT_TRUE(Ok(actors[i]->Answer())) << "round " << round;
      done += kAtOnce;
    }
    // Workers are followed by others three times in a minute, which the next vault counts anew. Nobody asks anything
    // now, and the broker has been there for a while.
    if (round % 40 == 0) daemon.KillVault();
    if (round % 2 == 0) actors[victim] = Start(daemon, kUsers[victim]);
  }
  std::cout << done << " blocks of " << actors.size() << " users were empty; " << killed << " were killed\n";
  for (const auto& actor : actors) actor->Quit();
  EXPECT_TRUE(daemon.BooksBecome([](const Books& books) { return books.blocks == 0 && books.live == 0; }));
}

}  // namespace
}  // namespace berth::testing
