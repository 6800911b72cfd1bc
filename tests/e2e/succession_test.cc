// The death of the vault: the broker starts another one and gives it everything; clients hear nothing of it.
//
// BERTH_FAULT_KILLS sets how often it is killed in a row under load (default 10).

#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/block_handle.h"
#include "common/error.h"
#include "gtest/gtest.h"
#include "tests/support/actor_handle.h"
#include "tests/support/environment.h"
#include "tests/support/test_daemon.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr uint64_t kMiB = 1 << 20;

class EveryKindTest : public EachExportKind {};
INSTANTIATE_TEST_SUITE_P(Kinds, EveryKindTest, EachExportKind::Kinds());

TEST_P(EveryKindTest, AVaultsDeathIsNoticedByNobody) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  const pid_t broker = daemon.broker();
  Actor holder(daemon);
  Actor waiter(daemon);
  Actor importer(daemon);
  holder.Do("acquire p");
  waiter.Do("begin p");
  ASSERT_TRUE(daemon.BooksBecome([](const Books& books) { return books.waiters == 1; }));
  const BlockHandle handle = holder.Allocate("b", 4 * kMiB);
  holder.Do("map b");
  holder.Do("fill b 3");
  holder.Do(absl::StrCat("grant-session b ", importer.session().value()));
  for (int life = 0; life < 3; ++life) {
    daemon.KillVault();
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
  daemon.ExpectBooksBack();
}

TEST(SuccessionTest, WhoIsServedWhileTheVaultIsGoneIsServed) {
  TestDaemon daemon;
  std::vector<std::unique_ptr<Actor>> actors;
  for (int i = 0; i < 4; ++i) actors.push_back(std::make_unique<Actor>(daemon));
  const uint64_t kills = FromEnvironment("BERTH_FAULT_KILLS", 10);
  for (uint64_t round = 0; round < kills && !HasFailure(); ++round) {
    for (const auto& actor : actors) actor->Tell(absl::StrCat("churn 20 ", round + 1));
    daemon.KillVault();
    for (const auto& actor : actors) EXPECT_TRUE(Ok(actor->Answer()));
  }
  for (const auto& actor : actors) actor->Quit();
  daemon.ExpectBooksBack();
}

TEST(SuccessionTest, ItStopsCleanlyUnderAnyOfItsVaults) {
  TestDaemon daemon;
  Actor actor(daemon);
  actor.Do("acquire p");
  actor.Do(absl::StrCat("allocate b ", kMiB));
  daemon.KillVault();
  daemon.Stop();
  EXPECT_TRUE(Eventually([&] { return !actor.Ask("status").ok(); }));
}

TEST(SuccessionTest, AWorkerThatDiesUnderTheNextVaultIsFollowed) {
  TestDaemon daemon;
  Actor actor(daemon);
  daemon.KillVault();
  const pid_t worker = daemon.workers().at(0);
  ASSERT_EQ(::kill(worker, SIGKILL), 0);
  EXPECT_TRUE(Ok(actor.Ask(absl::StrCat("allocate b ", kMiB))));
  EXPECT_TRUE(Eventually([&] { return !daemon.workers().empty() && daemon.workers()[0] != worker; }));
  actor.Quit();
}

}  // namespace
}  // namespace berth::testing
