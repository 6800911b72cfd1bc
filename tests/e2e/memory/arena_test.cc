// Arenas over a real daemon: the daemon accounts their leases, which come back however the arenas end.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/environment.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kChunk = 16 * kMiB;

bool LiveBecomes(TestDaemon& daemon, uint64_t bytes) {
  return daemon.AccountsBecome(
      [&](const Accounts& accounts) { return accounts.live == bytes && accounts.retired + accounts.quarantined == 0; });
}

class ArenaTest : public EachExportKind {};
INSTANTIATE_TEST_SUITE_P(Kinds, ArenaTest, ArenaTest::Kinds());

TEST_P(ArenaTest, ArenaServesFromLeasedChunks) {
  TestDaemon daemon;
  Actor actor(daemon);
  actor.Do("arena");
  EXPECT_EQ(daemon.TakeAccounts().live, kChunk);
  for (int i = 0; i < 100; ++i) actor.Do(absl::StrCat("arena-allocate b", i, " ", 1000 * (i + 1)));
  EXPECT_EQ(daemon.TakeAccounts().live, kChunk);
  EXPECT_EQ(daemon.TakeAccounts().blocks, 1u);
  actor.Do(absl::StrCat("arena-allocate large ", 40 * kMiB));
  EXPECT_EQ(daemon.TakeAccounts().live, kChunk + 40 * kMiB);
  actor.Quit();
  daemon.ExpectAccountsBack();
}

TEST_P(ArenaTest, TrimReturnsFreeMemory) {
  TestDaemon daemon;
  Actor actor(daemon);
  actor.Do("arena");
  actor.Do(absl::StrCat("arena-allocate a ", kChunk));
  actor.Do(absl::StrCat("arena-allocate b ", kChunk, " 7"));
  actor.Do(absl::StrCat("arena-allocate c ", 3 * kChunk));
  actor.Do("arena-free b");
  actor.Do("arena-free c");
  EXPECT_EQ(actor.Do("arena-trim"), absl::StrCat(4 * kChunk));
  EXPECT_TRUE(LiveBecomes(daemon, kChunk));
  actor.Do("arena-free a");
  EXPECT_EQ(actor.Do("arena-trim"), absl::StrCat(kChunk));
  EXPECT_TRUE(LiveBecomes(daemon, 0));
  actor.Quit();
  daemon.ExpectAccountsBack();
}

TEST_P(ArenaTest, ArenaLivesUntilItsLastBuffer) {
  TestDaemon daemon;
  Actor actor(daemon);
  actor.Do("arena");
  actor.Do("arena-allocate a 1000");
  actor.Do("arena-drop");
  EXPECT_EQ(daemon.TakeAccounts().live, kChunk);
  // The state that frees an allocation outlives the name of its arena.
  actor.Do("arena");
  EXPECT_EQ(daemon.TakeAccounts().live, 2 * kChunk);
  actor.Do("arena-free a");
  EXPECT_TRUE(LiveBecomes(daemon, kChunk));
  actor.Do("arena-drop");
  EXPECT_TRUE(LiveBecomes(daemon, 0));
  actor.Quit();
  daemon.ExpectAccountsBack();
}

TEST_P(ArenaTest, KilledProcessLeavesNothing) {
  TestDaemon daemon;
  Actor survivor(daemon);
  Actor victim(daemon);
  survivor.Do("arena");
  victim.Do("arena");
  for (int i = 0; i < 20; ++i) victim.Do(absl::StrCat("arena-allocate b", i, " ", 5 * kMiB));
  EXPECT_GT(daemon.TakeAccounts().live, 100 * kMiB);
  victim.Kill();
  EXPECT_TRUE(LiveBecomes(daemon, kChunk));
  // The other arena is unchanged.
  survivor.Do("arena-churn 50 1");
  survivor.Quit();
  daemon.ExpectAccountsBack();
}

TEST_P(ArenaTest, ArenaReachesBudgetOnlyWithoutFreeMemory) {
  TestDaemon daemon({.flags = {"--device-budget=24MiB"}});
  Actor actor(daemon);
  Actor other(daemon);
  actor.Do("arena");
  actor.Do(absl::StrCat("arena-allocate a ", 14 * kMiB));
  // A chunk exceeds the rest of the budget; the requested size does not.
  actor.Do(absl::StrCat("arena-allocate b ", 8 * kMiB));
  EXPECT_TRUE(Refused(actor.Ask(absl::StrCat("arena-allocate c ", 4 * kMiB)), Reason::kOverBudget,
                      {{"layer", "device"}, {"remaining", "0"}}));
  EXPECT_TRUE(Refused(other.Ask("arena"), Reason::kOverBudget, {{"layer", "device"}}));
  EXPECT_EQ(daemon.TakeAccounts().live, 24 * kMiB);
  // The arena returns freed chunks by itself where that makes an allocation possible.
  actor.Do("arena-free a");
  actor.Do("arena-free b");
  actor.Do(absl::StrCat("arena-allocate d ", 20 * kMiB));
  EXPECT_TRUE(LiveBecomes(daemon, 20 * kMiB));
  actor.Quit();
  other.Quit();
  daemon.ExpectAccountsBack();
}

TEST_P(ArenaTest, ArenaLimitIsNamed) {
  TestDaemon daemon;
  Actor actor(daemon);
  actor.Do(absl::StrCat("arena limit=", 20 * kMiB));
  EXPECT_TRUE(Refused(actor.Ask(absl::StrCat("arena-allocate a ", 21 * kMiB)), Reason::kOverBudget,
                      {{"layer", "arena"}, {"limit", absl::StrCat(20 * kMiB)}}));
  actor.Do(absl::StrCat("arena-allocate a ", 20 * kMiB));
  EXPECT_EQ(daemon.TakeAccounts().live, 20 * kMiB);
  actor.Quit();
  daemon.ExpectAccountsBack();
}

TEST_P(ArenaTest, MissingDeviceIsReportedAtCreation) {
  TestDaemon daemon;
  Actor actor(daemon);
  EXPECT_FALSE(Ok(actor.Ask("arena device=7")));
  actor.Quit();
  daemon.ExpectAccountsBack();
}

TEST_P(ArenaTest, ArenaServesNothingAfterItsLeaseEnds) {
  TestDaemon daemon;
  // At its end it waits for a daemon that takes its block back.
  Actor actor(daemon, {.environment = {"BERTH_TEST_PATIENCE=1"}});
  actor.Do("arena");
  actor.Do("arena-allocate a 1000");
  actor.Do("arena-free a");
  daemon.Stop();
  // The arena's cache could serve this without a call.
  EXPECT_TRUE(Eventually([&] { return Refused(actor.Ask("arena-allocate a 1000"), Reason::kStale); }));
  actor.Quit();
}

TEST_P(ArenaTest, ContainersAllocateFromArena) {
  TestDaemon daemon;
  Actor actor(daemon);
  actor.Do("arena");
  EXPECT_EQ(actor.Do("arena-pmr 1000000"), "1000000");
  EXPECT_EQ(daemon.TakeAccounts().blocks, 1u);
  actor.Quit();
  daemon.ExpectAccountsBack();
}

TEST_P(ArenaTest, SixteenProcessesChurnWithoutLeaks) {
  TestDaemon daemon;
  constexpr int kProcesses = 16;
  std::vector<std::unique_ptr<Actor>> actors;
  for (int i = 0; i < kProcesses; ++i) actors.push_back(std::make_unique<Actor>(daemon));
  for (const auto& actor : actors) actor->Do("arena");
  for (int i = 0; i < kProcesses; ++i) actors[i]->SendLine(absl::StrCat("arena-churn ", GateOrSoak(24, 64), " ", i));
  // Some actors are killed during their work.
  for (int i = 0; i < 4; ++i) actors[i]->Kill();
  for (int i = 4; i < kProcesses; ++i) EXPECT_TRUE(Ok(actors[i]->Answer()));
  for (int i = 4; i < kProcesses; ++i) EXPECT_EQ(actors[i]->Do("arena-trim"), absl::StrCat(kChunk));
  EXPECT_TRUE(LiveBecomes(daemon, 0));
  for (int i = 4; i < kProcesses; ++i) actors[i]->Quit();
  daemon.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
