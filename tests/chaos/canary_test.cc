// Isolation: no tenant ever reads a byte that another tenant wrote. Processes of several users lease blocks repeatedly,
// of sizes that fit each other, among them warm blocks. Each process finds every byte empty, fills the block, and
// releases it or is killed with it. Brokers, supervisors and workers are killed in between.
//
// BERTH_CANARY_CYCLES sets the number of blocks (800, in the soak 2,500; with $BERTH_GPU_TEST_BACKEND=cuda 1,000),
// BERTH_FAULT_SEED replays the random choices of a run. The test needs root, for the users.

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
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/environment.h"
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

TEST_F(CanaryTest, NoClientReadsForeignData) {
  if (!IsRoot()) GTEST_SKIP() << "it takes root to be several users";
  // In the gate enough for one death of the broker.
  const uint64_t cycles = FromEnvironment("BERTH_CANARY_CYCLES", backend_ == "host" ? GateOrSoak(800, 2'500) : 1'000);
  TestDaemon daemon({.flags = {"--warm-blocks=2"}, .backend = backend_});
  std::vector<std::unique_ptr<Actor>> actors;
  for (const uid_t user : kUsers) actors.push_back(Start(daemon, user));
  uint64_t done = 0;
  uint64_t killed = 0;
  for (uint64_t round = 1; done < cycles; ++round) {
    for (const auto& actor : actors) actor->SendLine(absl::StrCat("reuse ", kAtOnce));
    if (round % 8 == 0) daemon.KillBroker();
    if (round % 40 == 0) {
      const std::vector<pid_t> workers = daemon.workers();
      if (!workers.empty()) ::kill(workers[0], SIGKILL);
    }
    // Kills one of them at any point of its work, with all blocks that it has filled.
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
    // The supervisor replaces workers at most three times in a minute; a new supervisor starts a new count. No request
    // is pending now, and the broker has run for a while.
    if (round % 40 == 0) daemon.KillSupervisor();
    if (round % 2 == 0) actors[victim] = Start(daemon, kUsers[victim]);
  }
  std::cout << done << " blocks of " << actors.size() << " users were empty; " << killed << " were killed\n";
  for (const auto& actor : actors) actor->Quit();
  EXPECT_TRUE(
      daemon.AccountsBecome([](const Accounts& accounts) { return accounts.blocks == 0 && accounts.live == 0; }));
}

}  // namespace
}  // namespace berth::testing
