// Blocks across processes: one memory that several processes map, access rights, and when the bytes come back.

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <berth/block_handle.h>
#include <berth/error.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/memory.pb.h"
#include "berth/v1/resources.pb.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kGranularity = 2 * kMiB;

std::string Text(const BlockHandle& handle) { return FormatHandle(handle); }

// Returns the only block, as an operator sees it.
v1::Block OnlyBlock(TestDaemon& daemon) {
  const v1::ListBlocksResponse blocks = Must(daemon.inspector().ListBlocks(), "blocks");
  if (blocks.blocks_size() != 1) Fatal(absl::InternalError(blocks.ShortDebugString()), "expected one block");
  return blocks.blocks(0);
}

// Two processes with a session each; `importer` has mapped and checked a block that `owner` filled.
struct Shared {
  explicit Shared(const TestDaemon& daemon, absl::string_view import_options = "")
      : owner(daemon), importer(daemon) {
    handle = owner.Allocate("b", 4 * kMiB);
    owner.Do("map b");
    owner.Do("fill b 7");
    owner.Do("unmap b");
    owner.Do(absl::StrCat("grant-session b ", importer.session().value()));
    importer.Do(absl::StrCat("import b ", Text(handle), " ", import_options));
    importer.Do("map b");
    importer.Do("check b 7");
  }
  Actor owner;
  Actor importer;
  BlockHandle handle;
};

class BlocksTest : public EachExportKind {};
INSTANTIATE_TEST_SUITE_P(Kinds, BlocksTest, BlocksTest::Kinds());

TEST_P(BlocksTest, WriteOfProcessIsReadInOther) {
  TestDaemon daemon;
  Shared shared(daemon);
  shared.owner.Do("map b");
  // Both map one memory, not copies: each sees the other's new writes.
  shared.owner.Do("fill b 8");
  EXPECT_TRUE(Ok(shared.importer.Ask("check b 8")));
  shared.importer.Do("fill b 9");
  EXPECT_TRUE(Ok(shared.owner.Ask("check b 9")));
  EXPECT_EQ(OnlyBlock(daemon).imports_size(), 2);
  shared.importer.Do("drop b");
  shared.owner.Do("drop b");
  EXPECT_TRUE(
      daemon.AccountsBecome([](const Accounts& accounts) { return accounts.blocks == 0 && accounts.live == 0; }));
  shared.owner.Quit();
  shared.importer.Quit();
  daemon.ExpectAccountsBack();
}

TEST_P(BlocksTest, GrantToTenantCoversEachSession) {
  TestDaemon daemon;
  Actor owner(daemon);
  Actor importer(daemon);
  const BlockHandle handle = owner.Allocate("b", kMiB);
  EXPECT_TRUE(Refused(importer.Ask(absl::StrCat("import b ", Text(handle))), Reason::kDenied));
  owner.Do(absl::StrCat("grant-tenant b ", ClientUid()));
  EXPECT_TRUE(Ok(importer.Ask(absl::StrCat("import b ", Text(handle)))));
  Actor later(daemon);
  EXPECT_TRUE(Ok(later.Ask(absl::StrCat("import b ", Text(handle)))));
  owner.Quit();
  importer.Quit();
  later.Quit();
  daemon.ExpectAccountsBack();
}

TEST(FdBlocksTest, ReadOnlyImportCannotBeMadeWritable) {
  TestDaemon daemon;
  Shared shared(daemon, "ro");
  const std::string mapped = shared.importer.Do("map b");
  EXPECT_EQ(mapped, absl::StrCat(4 * kMiB, " r--s"));
  EXPECT_TRUE(absl::IsPermissionDenied(shared.importer.Ask("writable b").status()));
  EXPECT_EQ(OnlyBlock(daemon).imports(1).read_only(), v1::READ_ONLY_ENFORCED);
  shared.owner.Quit();
  shared.importer.Quit();
  daemon.ExpectAccountsBack();
}

TEST_P(BlocksTest, FreedBlockIsQuarantinedUntilImporterReleases) {
  TestDaemon daemon;
  Shared shared(daemon);
  EXPECT_TRUE(Ok(shared.importer.Ask("access b")));
  EXPECT_TRUE(Ok(shared.owner.Ask("free b")));
  ASSERT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.imports == 1; }));
  const v1::Block block = OnlyBlock(daemon);
  EXPECT_EQ(block.state(), v1::Block::QUARANTINED);
  EXPECT_EQ(block.owner(), 0u);
  EXPECT_TRUE(block.imports(0).recalled());
  const Accounts accounts = daemon.TakeAccounts();
  EXPECT_EQ(accounts.quarantined, 4 * kMiB);
  EXPECT_EQ(accounts.live, 0u);
  // The memory is not reused: the importer's bytes are unchanged, and its reference reports the free.
  EXPECT_TRUE(Ok(shared.importer.Ask("check b 7")));
  EXPECT_TRUE(Eventually([&] { return Refused(shared.importer.Ask("access b"), Reason::kStale); }));
  const absl::Status stale = shared.importer.Ask("access b").status();
  EXPECT_TRUE(absl::StrContains(stale.message(), "block freed")) << stale;
  shared.importer.Do("drop b");
  EXPECT_TRUE(daemon.AccountsBecome([](const Accounts& now) { return now.blocks == 0 && now.quarantined == 0; }));
  shared.owner.Quit();
  shared.importer.Quit();
  daemon.ExpectAccountsBack();
}

TEST_P(BlocksTest, KilledOwnersBlockLivesWithImporter) {
  TestDaemon daemon;
  Shared shared(daemon);
  shared.owner.Kill();
  ASSERT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.quarantined == 4 * kMiB; }));
  EXPECT_EQ(daemon.TakeAccounts().live, 0u);
  EXPECT_TRUE(Ok(shared.importer.Ask("check b 7")));
  EXPECT_TRUE(Ok(shared.importer.Ask("fill b 5")));
  EXPECT_TRUE(Ok(shared.importer.Ask("check b 5")));
  shared.importer.Do("drop b");
  EXPECT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.blocks == 0; }));
  shared.importer.Quit();
  daemon.ExpectAccountsBack();
}

TEST_P(BlocksTest, KilledImporterReleasesFreedBlock) {
  TestDaemon daemon;
  Shared shared(daemon);
  EXPECT_TRUE(Ok(shared.owner.Ask("free b")));
  EXPECT_EQ(OnlyBlock(daemon).state(), v1::Block::QUARANTINED);
  shared.importer.Kill();
  EXPECT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.blocks == 0; }));
  shared.owner.Quit();
  daemon.ExpectAccountsBack();
}

TEST_P(BlocksTest, KilledOwnerAndImporterLeaveNothing) {
  TestDaemon daemon;
  Shared shared(daemon);
  shared.importer.process().Kill();
  shared.owner.process().Kill();
  shared.importer.process().Wait();
  shared.owner.process().Wait();
  daemon.ExpectAccountsBack();
}

TEST_P(BlocksTest, BytesAreListedByDeviceSessionAndLabel) {
  TestDaemon daemon({.flags = {"--host-devices=2"}});
  Actor actor(daemon);
  actor.Do("allocate a 1 label=weights");
  actor.Do(absl::StrCat("allocate b ", 3 * kMiB, " device=1 label=cache"));
  const v1::Usage usage = Must(daemon.inspector().GetUsage());
  ASSERT_EQ(usage.devices_size(), 2);
  ASSERT_EQ(usage.rows_size(), 2);
  const uint64_t session = actor.session().value();
  EXPECT_EQ(usage.rows(0).label(), "weights");
  EXPECT_EQ(usage.rows(0).session(), session);
  EXPECT_EQ(usage.rows(0).bytes().outstanding(), kGranularity);
  EXPECT_EQ(usage.rows(1).label(), "cache");
  EXPECT_EQ(usage.rows(1).device(), 1u);
  EXPECT_EQ(usage.rows(1).bytes().live(), 2 * kGranularity);
  EXPECT_EQ(usage.devices(1).bytes().outstanding(), 2 * kGranularity);
  actor.Quit();
  daemon.ExpectAccountsBack();
}

TEST_P(BlocksTest, ExactBudgetFitsFurtherByteIsRejected) {
  TestDaemon daemon({.flags = {"--device-budget=8MiB"}});
  Actor actor(daemon);
  EXPECT_TRUE(Refused(actor.Ask(absl::StrCat("allocate b ", 8 * kMiB + 1)), Reason::kOverBudget,
                      {{"layer", "device"},
                       {"requested", absl::StrCat(8 * kMiB + kGranularity)},
                       {"current", "0"},
                       {"remaining", absl::StrCat(8 * kMiB)},
                       {"limit", absl::StrCat(8 * kMiB)}}));
  EXPECT_EQ(daemon.TakeAccounts().blocks, 0u);
  EXPECT_TRUE(Ok(actor.Ask(absl::StrCat("allocate b ", 8 * kMiB))));
  EXPECT_TRUE(Refused(actor.Ask("allocate c 1"), Reason::kOverBudget,
                      {{"layer", "device"}, {"current", absl::StrCat(8 * kMiB)}, {"remaining", "0"}}));
  EXPECT_TRUE(Ok(actor.Ask("free b")));
  // The allocation waits for memory whose release is in progress.
  EXPECT_TRUE(Ok(actor.Ask(absl::StrCat("allocate c ", 8 * kMiB))));
  actor.Quit();
  daemon.ExpectAccountsBack();
}

TEST_P(BlocksTest, QuarantinedBytesCountInBudget) {
  TestDaemon daemon({.flags = {"--device-budget=4MiB"}});
  Shared shared(daemon);
  EXPECT_TRUE(Ok(shared.owner.Ask("free b")));
  EXPECT_TRUE(Refused(shared.owner.Ask("allocate c 1"), Reason::kOverBudget));
  shared.importer.Do("drop b");
  ASSERT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.blocks == 0; }));
  EXPECT_TRUE(Ok(shared.owner.Ask("allocate c 1")));
  shared.owner.Quit();
  shared.importer.Quit();
  daemon.ExpectAccountsBack();
}

TEST_P(BlocksTest, HandleOfFreedBlockIsStale) {
  TestDaemon daemon;
  Actor owner(daemon);
  const BlockHandle handle = owner.Allocate("b", kMiB);
  BlockHandle other_incarnation = handle;
  ++other_incarnation.incarnation;
  EXPECT_TRUE(Refused(owner.Ask(absl::StrCat("import i ", Text(other_incarnation))), Reason::kStale));
  owner.Do("free b");
  ASSERT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.blocks == 0; }));
  // The error does not disclose that the block ever existed.
  EXPECT_TRUE(Refused(owner.Ask(absl::StrCat("import i ", Text(handle))), Reason::kDenied));
  owner.Quit();
  daemon.ExpectAccountsBack();
}

TEST_P(BlocksTest, OwnersMappingQuarantinesFreedBlock) {
  TestDaemon daemon;
  Actor owner(daemon);
  owner.Allocate("b", kMiB);
  owner.Do("map b");
  owner.Do("fill b 4");
  EXPECT_TRUE(Ok(owner.Ask("free b")));
  EXPECT_EQ(OnlyBlock(daemon).state(), v1::Block::QUARANTINED);
  EXPECT_TRUE(Ok(owner.Ask("check b 4")));
  owner.Do("unmap b");
  EXPECT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.blocks == 0; }));
  owner.Quit();
  daemon.ExpectAccountsBack();
}

TEST_P(BlocksTest, EightProcessesChurnBlocksWithoutLeaks) {
  TestDaemon daemon;
  constexpr int kProcesses = 8;
  std::vector<std::unique_ptr<Actor>> actors;
  for (int i = 0; i < kProcesses; ++i) actors.push_back(std::make_unique<Actor>(daemon));
  for (int i = 0; i < kProcesses; ++i) actors[i]->SendLine(absl::StrCat("churn 64 ", i));
  for (const auto& actor : actors) EXPECT_TRUE(Ok(actor->Answer()));
  EXPECT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) {
    return accounts.blocks == 0 && accounts.live + accounts.retired + accounts.quarantined == 0;
  }));
  for (const auto& actor : actors) actor->Quit();
  daemon.ExpectAccountsBack();
}

TEST(FdBlocksTest, WarmBlocksAreChargedApartAndUsedOnce) {
  TestDaemon daemon({.flags = {"--warm-blocks=2"}});
  Actor actor(daemon);
  actor.Allocate("b", kMiB);
  EXPECT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.warm == 2 * kGranularity; }));
  EXPECT_EQ(daemon.TakeAccounts().live, kGranularity);
  actor.Do("map b");
  actor.Do("fill b 3");
  actor.Do("drop b");
  EXPECT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.blocks == 0; }));
  actor.Allocate("c", kMiB);
  actor.Do("map c");
  // The new block has no old bytes. Seed 3 was there before, and would be found in a block that was reused unscrubbed.
  EXPECT_FALSE(Ok(actor.Ask("check c 3")));
  actor.Quit();
  EXPECT_TRUE(
      daemon.AccountsBecome([](const Accounts& accounts) { return accounts.sessions == 1 && accounts.live == 0; }));
}

}  // namespace
}  // namespace berth::testing
