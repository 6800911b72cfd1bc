// Fences across processes: a use waits for earlier uses in any process, whichever process dies.

#include <signal.h>

#include <cstdint>
#include <string>

#include <berth/block_handle.h>
#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "berth/v1/fence.pb.h"
#include "berth/v1/memory.pb.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/proc.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr uint64_t kBytes = 1 << 20;
constexpr int kRounds = 64;
// For cases that wait for the end of a hand-over that does not come.
constexpr char kOwnBounds[] = "BERTH_TEST_PATIENCE=1";

// Two processes with a stream each and a block that both map. A gate holds up the writer's stream.
struct Pair {
  explicit Pair(const TestDaemon& daemon) : writer(daemon), reader(daemon) {
    const BlockHandle handle = writer.Allocate("b", kBytes);
    writer.Do("map b");
    writer.Do(absl::StrCat("grant-session b ", reader.session().value()));
    writer.Do("stream s");
    reader.Do("stream s");
    import = absl::StrCat("import b ", FormatHandle(handle));
  }
  void Share() {
    reader.Do(import);
    reader.Do("map b");
  }
  // Queues the writer's launch behind a gate.
  void QueueWrite(uint64_t seed) {
    writer.Do("preflight w s b:w");
    writer.Do("gate s");
    writer.Do(absl::StrCat("queue-fill s b ", seed));
    EXPECT_EQ(writer.Do("commit w"), "");
  }
  void Quit() {
    writer.Quit();
    reader.Quit();
  }
  Actor writer;
  Actor reader;
  std::string import;
};

class FencesTest : public EachExportKind {};
INSTANTIATE_TEST_SUITE_P(Kinds, FencesTest, FencesTest::Kinds());

TEST_P(FencesTest, ReaderInOtherProcessSeesEarlierWrite) {
  TestDaemon daemon;
  Pair pair(daemon);
  pair.Share();
  for (int round = 1; round <= kRounds; ++round) {
    pair.QueueWrite(round);
    pair.reader.Do("preflight r s b:r");
    pair.reader.Do(absl::StrCat("queue-check s b ", round));
    pair.reader.Do("commit r");
    pair.writer.Do("open-gate s");
    ASSERT_TRUE(Ok(pair.reader.Ask("sync s"))) << "round " << round;
  }
  pair.Quit();
  daemon.ExpectAccountsBack();
}

TEST_P(FencesTest, ReaderWithoutFencesSeesOldData) {
  TestDaemon daemon;
  Pair pair(daemon);
  pair.Share();
  int stale = 0;
  for (int round = 1; round <= kRounds; ++round) {
    pair.QueueWrite(round);
    pair.reader.Do(absl::StrCat("queue-check s b ", round));
    stale += absl::IsDataLoss(pair.reader.Ask("sync s").status()) ? 1 : 0;
    pair.writer.Do("open-gate s");
    pair.writer.Do("sync s");
  }
  EXPECT_EQ(stale, kRounds);
  pair.Quit();
  daemon.ExpectAccountsBack();
}

TEST_P(FencesTest, WriterWaitsForReadersOfOtherProcess) {
  TestDaemon daemon;
  Pair pair(daemon);
  pair.Share();
  pair.QueueWrite(1);
  pair.writer.Do("open-gate s");
  pair.reader.Do("preflight r s b:r");
  pair.reader.Do("gate s");
  pair.reader.Do("queue-check s b 1");
  pair.reader.Do("commit r");
  pair.writer.Do("preflight w s b:w");
  pair.writer.Do("queue-fill s b 2");
  pair.writer.Do("commit w");
  pair.reader.Do("open-gate s");
  EXPECT_TRUE(Ok(pair.reader.Ask("sync s")));
  EXPECT_TRUE(Ok(pair.writer.Ask("sync s")));
  EXPECT_TRUE(Ok(pair.reader.Ask("check b 2")));
  pair.Quit();
  daemon.ExpectAccountsBack();
}

TEST_P(FencesTest, StreamsOfSameProcessAreOrderedLocally) {
  TestDaemon daemon;
  Pair pair(daemon);
  pair.writer.Do("stream t");
  pair.QueueWrite(5);
  pair.writer.Do("preflight r t b:r");
  pair.writer.Do("queue-check t b 5");
  pair.writer.Do("commit r");
  // The daemon saw neither use.
  const v1::ListStreamsResponse streams = Must(daemon.inspector().ListStreams(), "streams");
  ASSERT_EQ(streams.streams_size(), 3);
  for (const v1::FenceStream& stream : streams.streams()) EXPECT_EQ(stream.last_value(), 0u);
  pair.writer.Do("open-gate s");
  EXPECT_TRUE(Ok(pair.writer.Ask("sync t")));
  pair.Quit();
  daemon.ExpectAccountsBack();
}

TEST_P(FencesTest, LocalUseIsHandedOverAtSecondImport) {
  TestDaemon daemon;
  Pair pair(daemon);
  pair.QueueWrite(3);
  pair.Share();
  pair.reader.Do("preflight r s b:r");
  pair.reader.Do("queue-check s b 3");
  pair.reader.Do("commit r");
  pair.writer.Do("open-gate s");
  EXPECT_TRUE(Ok(pair.reader.Ask("sync s")));
  pair.Quit();
  daemon.ExpectAccountsBack();
}

TEST_P(FencesTest, HandOverWaitsForOpenUse) {
  TestDaemon daemon({.environment = {kOwnBounds}});
  Pair pair(daemon);
  pair.writer.Do("preflight w s b:w");
  EXPECT_TRUE(
      Refused(pair.reader.Ask(pair.import), Reason::kBlockInUse, {{"pid", absl::StrCat(pair.writer.pid())}}));
  pair.reader.SendLine(pair.import);
  pair.writer.Do("commit w");
  absl::Status imported = pair.reader.Answer().status();
  // A stalled writer may commit too late for the first.
  EXPECT_TRUE(Eventually([&] {
    if (IsRefusal(imported, Reason::kBlockInUse)) imported = pair.reader.Ask(pair.import).status();
    return imported.ok();
  })) << imported;
  pair.Quit();
  daemon.ExpectAccountsBack();
}

TEST_P(FencesTest, StoppedProcessBlocksSecondImportAndIsNamed) {
  TestDaemon daemon({.environment = {kOwnBounds}});
  Pair pair(daemon);
  ::kill(pair.writer.pid(), SIGSTOP);
  ASSERT_TRUE(Eventually([&] { return StateOf(pair.writer.pid()) == 'T'; }));
  EXPECT_TRUE(
      Refused(pair.reader.Ask(pair.import), Reason::kBlockInUse, {{"pid", absl::StrCat(pair.writer.pid())}}));
  ::kill(pair.writer.pid(), SIGCONT);
  EXPECT_TRUE(Eventually([&] { return pair.reader.Ask(pair.import).ok(); }));
  pair.reader.Do("map b");
  pair.Quit();
  daemon.ExpectAccountsBack();
}

TEST_P(FencesTest, ThirdImportNeedsNoHandOver) {
  TestDaemon daemon;
  Pair pair(daemon);
  Actor third(daemon);
  pair.writer.Do(absl::StrCat("grant-session b ", third.session().value()));
  pair.Share();
  ::kill(pair.writer.pid(), SIGSTOP);
  ASSERT_TRUE(Eventually([&] { return StateOf(pair.writer.pid()) == 'T'; }));
  EXPECT_TRUE(Ok(third.Ask(pair.import)));
  ::kill(pair.writer.pid(), SIGCONT);
  third.Quit();
  pair.Quit();
  daemon.ExpectAccountsBack();
}

TEST_P(FencesTest, MissingFinishIsNamedAndListed) {
  TestDaemon daemon;
  Pair pair(daemon);
  pair.Share();
  pair.writer.Do("preflight w s b:w");
  EXPECT_TRUE(Refused(pair.reader.Ask("preflight r s ms=500 b:r"), Reason::kBlockInUse,
                      {{"pid", absl::StrCat(pair.writer.pid())}}));
  const v1::ListStreamsResponse streams = Must(daemon.inspector().ListStreams(), "streams");
  int open = 0;
  for (const v1::FenceStream& stream : streams.streams()) {
    if (stream.open_uses() == 0) continue;
    ++open;
    EXPECT_EQ(stream.process().pid(), pair.writer.pid());
    EXPECT_TRUE(stream.has_open_use_time());
  }
  EXPECT_EQ(open, 1);
  pair.writer.Do("abandon w");
  EXPECT_TRUE(Ok(pair.reader.Ask("preflight r s b:r")));
  pair.Quit();
  daemon.ExpectAccountsBack();
}

// The block's owner is a third process, so that the block outlives its writer.
struct Trio {
  explicit Trio(const TestDaemon& daemon) : owner(daemon), writer(daemon), reader(daemon) {
    const BlockHandle handle = owner.Allocate("b", kBytes);
    owner.Do("map b");
    owner.Do("fill b 1");
    for (Actor* const actor : {&writer, &reader}) {
      owner.Do(absl::StrCat("grant-session b ", actor->session().value()));
      actor->Do("stream s");
      actor->Do(absl::StrCat("import b ", FormatHandle(handle)));
      actor->Do("map b");
    }
  }
  void Quit() {
    owner.Quit();
    reader.Quit();
  }
  Actor owner;
  Actor writer;
  Actor reader;
};

TEST_P(FencesTest, WaiterForKilledWriterContinuesWithTornBlock) {
  TestDaemon daemon;
  Trio trio(daemon);
  trio.writer.Do("preflight w s b:w");
  trio.reader.SendLine("preflight r s b:r");
  trio.writer.Kill();
  const absl::StatusOr<std::string> said = trio.reader.Answer();
  ASSERT_TRUE(Ok(said));
  EXPECT_EQ(*said, "torn");
  trio.reader.Do("commit r");
  const v1::ListBlocksResponse blocks = Must(daemon.inspector().ListBlocks(), "blocks");
  ASSERT_EQ(blocks.blocks_size(), 1);
  EXPECT_TRUE(blocks.blocks(0).torn());
  // A write of the whole block makes it consistent.
  EXPECT_EQ(trio.reader.Do("preflight w s b:w"), "torn");
  EXPECT_EQ(trio.reader.Do("commit w"), "");
  EXPECT_EQ(trio.reader.Do("preflight r s b:r"), "");
  trio.reader.Do("commit r");
  trio.Quit();
  daemon.ExpectAccountsBack();
}

TEST_P(FencesTest, StreamContinuesAfterWritersDeathNextUseIsTorn) {
  TestDaemon daemon;
  Trio trio(daemon);
  trio.writer.Do("preflight w s b:w");
  trio.writer.Do("gate s");
  trio.writer.Do("queue-fill s b 2");
  trio.writer.Do("commit w");
  EXPECT_EQ(trio.reader.Do("preflight r s b:r"), "");
  trio.reader.Do("queue-check s b 1");
  trio.reader.Do("commit r");
  trio.writer.Kill();
  // The writer was killed before it wrote anything, and the reader sees exactly that.
  EXPECT_TRUE(Ok(trio.reader.Ask("sync s")));
  EXPECT_EQ(trio.reader.Do("preflight r s b:r"), "torn");
  EXPECT_EQ(trio.reader.Do("commit r"), "torn");
  trio.Quit();
  daemon.ExpectAccountsBack();
}

TEST_P(FencesTest, FreedBytesReturnOnlyAfterUses) {
  TestDaemon daemon;
  Pair pair(daemon);
  pair.Share();
  pair.QueueWrite(1);
  pair.writer.Do("unmap b");
  pair.reader.Do("unmap b");
  pair.reader.Do("drop b");
  pair.writer.SendLine("free b");
  EXPECT_TRUE(Ok(pair.writer.Answer()));
  ASSERT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.live == 0; }));
  EXPECT_NE(daemon.TakeAccounts().quarantined + daemon.TakeAccounts().retired, 0u);
  pair.writer.Do("open-gate s");
  EXPECT_TRUE(daemon.AccountsBecome(
      [](const Accounts& accounts) { return accounts.retired == 0 && accounts.quarantined == 0; }));
  pair.Quit();
  daemon.ExpectAccountsBack();
}

TEST_P(FencesTest, StreamBeyondLimitIsRejectedUntilClose) {
  TestDaemon daemon;
  Actor actor(daemon);
  for (int i = 1; i <= 16; ++i) EXPECT_EQ(actor.Do(absl::StrCat("stream s", i)), absl::StrCat(i));
  EXPECT_TRUE(Refused(actor.Ask("stream more"), Reason::kLimit,
                      {{"what", "streams_per_device"}, {"current", "16"}, {"limit", "16"}}));
  EXPECT_EQ(actor.Do("stream zero default"), "0");
  EXPECT_TRUE(Refused(actor.Ask("stream again default"), Reason::kStreamMisuse));
  actor.Do("close-stream s7");
  EXPECT_EQ(actor.Do("stream more"), "7");
  actor.Quit();
  daemon.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
