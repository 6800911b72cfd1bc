// Published blocks across real processes: loaded once, mapped by name, retained when their publisher ends.

#include <string>

#include <berth/block_handle.h>
#include <berth/error.h>

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

// Makes `actor` allocate a block, fill it with `seed` and unmap it.
void Fill(Actor& actor, int seed) {
  actor.Allocate("b", 4 * kMiB);
  actor.Do("map b");
  actor.Do(absl::StrCat("fill b ", seed));
  actor.Do("unmap b");
}

TEST(PublishedTest, BlockOfDeadPublisherIsMappedByName) {
  TestDaemon daemon;
  Actor publisher(daemon);
  Fill(publisher, 7);
  EXPECT_TRUE(Ok(publisher.Ask("publish b weights")));
  publisher.Kill();
  Actor reader(daemon);
  EXPECT_TRUE(Ok(reader.Ask("import-published w weights")));
  EXPECT_EQ(reader.Do("map w"), absl::StrCat(4 * kMiB, " r--s"));
  EXPECT_TRUE(Ok(reader.Ask("check w 7")));
  EXPECT_TRUE(absl::IsPermissionDenied(reader.Ask("writable w").status()));
  const v1::ListBlocksResponse blocks = Must(daemon.inspector().ListBlocks());
  ASSERT_EQ(blocks.blocks_size(), 1);
  EXPECT_EQ(blocks.blocks(0).name(), "weights");
  EXPECT_EQ(blocks.blocks(0).owner(), 0u);
  EXPECT_EQ(blocks.blocks(0).state(), v1::Block::LIVE);
  // Once unpublished, it lives until the reader releases it.
  EXPECT_TRUE(Ok(reader.Ask("unpublish weights")));
  EXPECT_TRUE(Refused(reader.Ask("unpublish weights"), Reason::kNotFound, {{"id", "weights"}}));
  EXPECT_TRUE(Refused(reader.Ask("import-published v weights"), Reason::kDenied));
  EXPECT_TRUE(Ok(reader.Ask("check w 7")));
  EXPECT_EQ(daemon.TakeAccounts().quarantined, 4 * kMiB);
  reader.Quit();
  daemon.ExpectAccountsBack();
}

TEST(PublishedTest, RemainingWriterIsNamedAndBlockStaysOwners) {
  TestDaemon daemon;
  Actor publisher(daemon), writer(daemon);
  const BlockHandle handle = publisher.Allocate("b", kMiB);
  publisher.Do("map b");
  // The publisher's SDK detects its own mapping.
  EXPECT_FALSE(Ok(publisher.Ask("publish b x")));
  publisher.Do("fill b 3");
  publisher.Do("unmap b");
  publisher.Do(absl::StrCat("grant-session b ", writer.session().value()));
  writer.Do(absl::StrCat("import b ", FormatHandle(handle)));
  EXPECT_TRUE(
      Refused(publisher.Ask("publish b x"), Reason::kBlockMapped, {{"pid", absl::StrCat(writer.pid())}}));
  // The publisher can use its block as before.
  publisher.Do("map b");
  EXPECT_TRUE(Ok(publisher.Ask("check b 3")));
  publisher.Do("fill b 4");
  publisher.Do("unmap b");
  writer.Kill();
  EXPECT_TRUE(Eventually([&] { return Ok(publisher.Ask("publish b x")); }));
  Actor reader(daemon);
  reader.Do("import-published w x");
  reader.Do("map w");
  EXPECT_TRUE(Ok(reader.Ask("check w 4")));
  reader.Do("unpublish x");
  reader.Quit();
  publisher.Quit();
  daemon.ExpectAccountsBack();
}

TEST(PublishedTest, LosingPublisherKeepsItsBlock) {
  TestDaemon daemon;
  Actor a(daemon), b(daemon);
  Fill(a, 1);
  Fill(b, 2);
  a.SendLine("publish b weights");
  b.SendLine("publish b weights");
  const bool first = Ok(a.Answer());
  const bool second = Ok(b.Answer());
  EXPECT_NE(first, second);
  Actor& loser = first ? b : a;
  EXPECT_TRUE(Refused(loser.Ask("publish b weights"), Reason::kNameTaken, {{"name", "weights"}}));
  loser.Do("map b");
  EXPECT_TRUE(Ok(loser.Ask(first ? "check b 2" : "check b 1")));
  loser.Do("unpublish weights");
  a.Quit();
  b.Quit();
  daemon.ExpectAccountsBack();
}

TEST(PublishedTest, KilledPublisherLeavesNoNameOrCompleteBlock) {
  TestDaemon daemon;
  int published = 0;
  for (int round = 0; round < 24; ++round) {
    Actor publisher(daemon);
    Fill(publisher, 5);
    publisher.SendLine("publish b weights");
    // The answer to an unrelated call is a good moment: each round uses a later one.
    for (int i = 0; i < round % 6; ++i) daemon.TakeAccounts();
    publisher.Kill();
    Actor reader(daemon);
    const absl::Status imported = reader.Ask("import-published w weights").status();
    if (imported.ok()) {
      ++published;
      reader.Do("map w");
      EXPECT_TRUE(Ok(reader.Ask("check w 5")));
      reader.Do("drop w");
      EXPECT_TRUE(Ok(reader.Ask("unpublish weights")));
    } else {
      EXPECT_TRUE(Refused(imported, Reason::kDenied));
    }
    EXPECT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.blocks == 0; }));
    reader.Quit();
  }
  EXPECT_GT(published, 0);
  daemon.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
