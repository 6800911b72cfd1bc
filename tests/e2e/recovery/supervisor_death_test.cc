// The supervisor's death: the broker has another one started and passes everything to it; clients do not notice.
//
// BERTH_FAULT_KILLS sets how often it is killed in a row under load (4, in the soak 10), BERTH_FAULT_SEED seeds the
// moments.

#include <signal.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <berth/block_handle.h>
#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/environment.h"
#include "tests/support/random_moment.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr uint64_t kMiB = 1 << 20;

class EveryKindTest : public EachExportKind {};
INSTANTIATE_TEST_SUITE_P(Kinds, EveryKindTest, EachExportKind::Kinds());

TEST_P(EveryKindTest, SupervisorDeathDisturbsNoClient) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  const pid_t broker = daemon.broker();
  Actor holder(daemon);
  Actor waiter(daemon);
  Actor importer(daemon);
  holder.Do("acquire p");
  waiter.Do("begin p");
  ASSERT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1; }));
  const BlockHandle handle = holder.Allocate("b", 4 * kMiB);
  holder.Do("map b");
  holder.Do("fill b 3");
  holder.Do(absl::StrCat("grant-session b ", importer.session().value()));
  for (int life = 0; life < 3; ++life) {
    daemon.KillSupervisor();
    EXPECT_TRUE(Ok(holder.Ask("status")));
    EXPECT_TRUE(Ok(holder.Ask("access b")));
    EXPECT_TRUE(Ok(holder.Ask("check b 3")));
    EXPECT_TRUE(Ok(importer.Ask(absl::StrCat("import b ", FormatHandle(handle)))));
    EXPECT_TRUE(Ok(importer.Ask("map b")));
    EXPECT_TRUE(Ok(importer.Ask("check b 3")));
    EXPECT_TRUE(Ok(importer.Ask("drop b")));
    EXPECT_TRUE(Ok(holder.Ask(absl::StrCat("allocate c ", kMiB))));
    EXPECT_TRUE(Ok(holder.Ask("free c")));
    Actor late(daemon);
    EXPECT_TRUE(Refused(late.Ask("acquire p try"), Reason::kNoPermit));
    late.Quit();
  }
  EXPECT_EQ(daemon.broker(), broker);
  EXPECT_TRUE(Ok(holder.Ask("release p")));
  EXPECT_TRUE(Ok(waiter.Ask("join p")));
  holder.Quit();
  waiter.Quit();
  importer.Quit();
  daemon.ExpectAccountsBack();
}

TEST(SupervisorDeathTest, ClientsAreServedDuringSupervisorDeath) {
  TestDaemon daemon;
  std::vector<std::unique_ptr<Actor>> actors;
  for (int i = 0; i < 4; ++i) actors.push_back(std::make_unique<Actor>(daemon));
  const uint64_t kills = FromEnvironment("BERTH_FAULT_KILLS", GateOrSoak(4, 10));
  const uint64_t seed = SeedFromEnvironment("BERTH_FAULT_SEED");
  std::mt19937_64 random(seed);
  // Kills while a client was being served.
  uint64_t met = 0;
  for (uint64_t round = 0; round < kills && !HasFailure(); ++round) {
    const pid_t supervisor = daemon.supervisor_pid();
    for (const auto& actor : actors) actor->SendLine(absl::StrCat("churn 20 ", round + 1));
    // At any point of their work.
    AwaitRandomMoment(random, absl::Milliseconds(5));
    ASSERT_EQ(::kill(supervisor, SIGKILL), 0);
    const auto busy = [](const auto& actor) { return actor->process().LinesByNow() == 0; };
    met += std::any_of(actors.begin(), actors.end(), busy) ? 1 : 0;
    daemon.AwaitSupervisorAfter(supervisor);
    for (const auto& actor : actors) EXPECT_TRUE(Ok(actor->Answer()));
  }
  std::cout << met << " of " << kills << " kills met those who are served" << std::endl;
  EXPECT_GT(met, 0u);
  for (const auto& actor : actors) actor->Quit();
  daemon.ExpectAccountsBack();
}

TEST(SupervisorDeathTest, DaemonStopsCleanlyUnderAnySupervisor) {
  TestDaemon daemon;
  Actor actor(daemon);
  actor.Do("acquire p");
  actor.Do(absl::StrCat("allocate b ", kMiB));
  daemon.KillSupervisor();
  daemon.Stop();
  actor.Kill();
}

TEST(SupervisorDeathTest, WorkerDyingUnderNextSupervisorIsReplaced) {
  TestDaemon daemon;
  Actor actor(daemon);
  daemon.KillSupervisor();
  const pid_t worker = daemon.workers().at(0);
  ASSERT_EQ(::kill(worker, SIGKILL), 0);
  EXPECT_TRUE(Ok(actor.Ask(absl::StrCat("allocate b ", kMiB))));
  EXPECT_TRUE(Eventually([&] { return !daemon.workers().empty() && daemon.workers()[0] != worker; }));
  actor.Quit();
}

}  // namespace
}  // namespace berth::testing
