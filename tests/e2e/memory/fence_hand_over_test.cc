// A block that only one process maps, and the effect on its uses when another process imports it, or when the first one
// dies. BERTH_FAULT_ROUNDS sets how many imports race with uses (200, in the soak 2,000).

#include <cstdint>
#include <string>

#include <berth/block_handle.h>
#include <berth/error.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/memory.pb.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/environment.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr uint64_t kBytes = 1 << 20;

uint64_t NumberOf(const std::string& said) {
  uint64_t number = 0;
  EXPECT_TRUE(absl::SimpleAtoi(said, &number)) << said;
  return number;
}

TEST(FenceHandOverTest, ImportRacingWithLocalUsesLosesNone) {
  const uint64_t rounds = FromEnvironment("BERTH_FAULT_ROUNDS", GateOrSoak(200, 2'000));
  TestDaemon daemon;
  Actor owner(daemon), other(daemon);
  for (const char* const stream : {"s", "t"}) owner.Do(absl::StrCat("stream ", stream));
  other.Do("stream s");
  uint64_t alone = 0;
  for (uint64_t round = 0; round < rounds; ++round) {
    const BlockHandle handle = owner.Allocate("b", kBytes);
    owner.Do("map b");
    owner.Do(absl::StrCat("grant-session b ", other.session().value()));
    owner.Do("use-churn b 1000000 s t");
    const std::string import = absl::StrCat("import b ", FormatHandle(handle));
    // On an overloaded machine the owner may take longer than a second to finish its use.
    absl::StatusOr<std::string> imported = other.Ask(import);
    while (IsRefusal(imported.status(), Reason::kBlockInUse)) imported = other.Ask(import);
    ASSERT_TRUE(Ok(imported));
    other.Do("map b");
    other.Do("use-churn b 3 s");
    const uint64_t theirs = NumberOf(other.Do("await-churn b"));
    const uint64_t ours = NumberOf(owner.Do("stop-churn b"));
    ASSERT_EQ(NumberOf(other.Do("count b")), ours + theirs) << "round " << round;
    alone += ours;
    other.Do("unmap b");
    other.Do("drop b");
    owner.Do("unmap b");
    owner.Do("free b");
    owner.Do("drop b");
  }
  EXPECT_GT(alone, rounds);
  owner.Quit();
  other.Quit();
  daemon.ExpectAccountsBack();
}

// The block belongs to a third session, which has dropped its import, so that the block outlives its only user.
struct Heirs {
  explicit Heirs(TestDaemon& daemon) : owner(daemon), writer(daemon), heir(daemon) {
    handle = owner.Allocate("b", kBytes);
    for (Actor* const actor : {&writer, &heir}) {
      owner.Do(absl::StrCat("grant-session b ", actor->session().value()));
      actor->Do("stream s");
    }
    import = absl::StrCat("import b ", FormatHandle(handle));
    const auto imports = [&] { return Must(daemon.inspector().ListBlocks()).blocks(0).imports(); };
    owner.Do(absl::StrCat("let-go ", imports()[0].id()));
    EXPECT_TRUE(Eventually([&] { return imports().empty(); }));
    writer.Do(import);
    writer.Do("map b");
  }
  // Returns the heir's answer about the block.
  std::string Inherit() {
    heir.Do(import);
    heir.Do("map b");
    const std::string said = heir.Do("preflight r s b:r");
    heir.Do("commit r");
    return said;
  }
  void Quit() {
    owner.Quit();
    heir.Quit();
  }
  Actor owner;
  Actor writer;
  Actor heir;
  BlockHandle handle;
  std::string import;
};

TEST(FenceHandOverTest, DeathDuringWriteLeavesBlockTorn) {
  TestDaemon daemon;
  Heirs heirs(daemon);
  heirs.writer.Do("preflight w s b:w");
  heirs.writer.Do("gate s");
  heirs.writer.Do("queue-fill s b 1");
  heirs.writer.Do("commit w");
  heirs.writer.Kill();
  EXPECT_EQ(heirs.Inherit(), "torn");
  // Two parties may declare the block whole: its own session, or an operator.
  EXPECT_TRUE(Refused(heirs.heir.Ask("clear-torn b"), Reason::kDenied));
  EXPECT_TRUE(Ok(daemon.inspector().ClearTorn(heirs.handle.block)));
  EXPECT_EQ(heirs.heir.Do("preflight r s b:r"), "");
  heirs.heir.Do("commit r");
  heirs.Quit();
  daemon.ExpectAccountsBack();
}

TEST(FenceHandOverTest, DeathBeforeSeenEndLeavesBlockTorn) {
  TestDaemon daemon;
  Heirs heirs(daemon);
  heirs.writer.Do("preflight w s b:w");
  heirs.writer.Do("commit w");
  heirs.writer.Kill();
  EXPECT_EQ(heirs.Inherit(), "torn");
  heirs.Quit();
  daemon.ExpectAccountsBack();
}

TEST(FenceHandOverTest, DeathAfterSeenEndLeavesBlockConsistent) {
  TestDaemon daemon;
  Heirs heirs(daemon);
  for (const char* const access : {"w", "rw", "r"}) {
    heirs.writer.Do(absl::StrCat("preflight l s b:", access));
    heirs.writer.Do("commit l");
    if (*access != 'r' || access[1] == 'w') heirs.writer.Do("sync s");
  }
  heirs.writer.Kill();
  EXPECT_EQ(heirs.Inherit(), "");
  heirs.Quit();
  daemon.ExpectAccountsBack();
}

TEST(FenceHandOverTest, CleanExitLeavesBlockConsistent) {
  TestDaemon daemon;
  Heirs heirs(daemon);
  heirs.writer.Do("preflight w s b:w");
  heirs.writer.Do("commit w");
  heirs.writer.Quit();
  EXPECT_EQ(heirs.Inherit(), "");
  heirs.Quit();
  daemon.ExpectAccountsBack();
}

TEST(FenceHandOverTest, StreamWaitsForEarlierUnsharedUses) {
  TestDaemon daemon;
  Actor owner(daemon), other(daemon);
  const BlockHandle shared = owner.Allocate("shared", kBytes);
  const BlockHandle alone = owner.Allocate("alone", kBytes);
  for (const char* const block : {"shared", "alone"}) {
    owner.Do(absl::StrCat("map ", block));
    owner.Do(absl::StrCat("grant-session ", block, " ", other.session().value()));
  }
  owner.Do("stream s");
  other.Do("stream s");
  other.Do(absl::StrCat("import shared ", FormatHandle(shared)));
  // A use of the block that only this process has mapped, then a launch with both blocks behind it, both behind a gate.
  owner.Do("preflight l s alone:w");
  owner.Do("gate s");
  owner.Do("queue-fill s alone 7");
  owner.Do("commit l");
  owner.Do("preflight l s alone:r shared:w");
  owner.Do("commit l");
  // The handed-over fence carries the pending value of the stream, and does not complete sooner.
  other.Do(absl::StrCat("import alone ", FormatHandle(alone)));
  other.Do("map alone");
  other.Do("preflight r s alone:r");
  other.Do("queue-check s alone 7");
  other.Do("commit r");
  owner.Do("open-gate s");
  EXPECT_TRUE(Ok(other.Ask("sync s")));
  owner.Quit();
  other.Quit();
  daemon.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
