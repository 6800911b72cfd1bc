// Memory that the driver fails to release: charged, shown with the driver's error, and released once the driver
// permits.

#include <unistd.h>

#include <fstream>
#include <string>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "berth/v1/admin.pb.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/memory.pb.h"
#include "berth/v1/resources.pb.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr const char* kWords = "cuMemRelease: CUDA_ERROR_NOT_PERMITTED (800)";

class ReapTest : public EachExportKind {
 protected:
  ReapTest()
      : flag_(absl::StrCat(::testing::TempDir(), "/stubborn")),
        daemon_({.program = "tests/support/daemon/stubborn_berthd",
                 .flags = {absl::StrCat("--device-budget=", 16 * kMiB)},
                 .environment = {absl::StrCat("BERTH_STUBBORN_WHILE=", flag_)}}) {}
  ~ReapTest() override { Relent(); }

  void BeStubborn() { std::ofstream(flag_) << "no"; }
  void Relent() { ::unlink(flag_.c_str()); }

  bool Stuck(uint64_t blocks, uint64_t bytes) {
    return daemon_.AccountsBecome([&](const Accounts& accounts) {
      return accounts.blocks == blocks && accounts.retired == bytes && Device().failed_releases() >= blocks;
    });
  }
  v1::Device Device() { return Must(daemon_.inspector().ListDevices()).devices(0); }
  std::string Berth(const std::string& verb) {
    Subprocess command =
        Subprocess::Start({.argv = {ProgramPath("client/cli/berth"), "--folder=" + daemon_.folder(), verb}});
    const std::string said = command.ReadAll();
    EXPECT_EQ(command.Wait(), 0) << said;
    return said;
  }

  const std::string flag_;
  TestDaemon daemon_;
};
INSTANTIATE_TEST_SUITE_P(Kinds, ReapTest, ReapTest::Kinds());

TEST_P(ReapTest, UnreleasedMemoryStaysChargedUntilReap) {
  Actor actor(daemon_);
  actor.Allocate("a", 4 * kMiB);
  actor.Allocate("b", 2 * kMiB);
  BeStubborn();
  actor.Do("drop a");
  actor.Do("drop b");
  ASSERT_TRUE(Stuck(2, 6 * kMiB)) << Describe(daemon_.TakeAccounts());
  const v1::ListBlocksResponse stuck = Must(daemon_.inspector().ListBlocks());
  for (const v1::Block& block : stuck.blocks()) {
    EXPECT_EQ(block.release_error(), kWords);
    EXPECT_EQ(block.state(), v1::Block::RETIRED);
  }
  EXPECT_NE(Berth("blocks").find(absl::StrCat("is not released: ", kWords)), std::string::npos);
  EXPECT_NE(Berth("log").find(kWords), std::string::npos);
  // To the byte: the daemon grants the rest of the budget, and no more.
  EXPECT_TRUE(Refused(actor.Ask(absl::StrCat("allocate c ", 10 * kMiB + 1)), Reason::kOverBudget));
  actor.Do(absl::StrCat("allocate c ", 10 * kMiB));
  // A retry fails while the driver still refuses, and succeeds once the driver permits.
  v1::ReapBlocksResponse reaped = Must(daemon_.inspector().ReapBlocks());
  EXPECT_EQ(reaped.tried_blocks(), 2u);
  EXPECT_EQ(reaped.returned_blocks(), 0u);
  // Three blocks: the two retired ones and the live one.
  ASSERT_TRUE(Stuck(3, 6 * kMiB));
  Relent();
  EXPECT_EQ(Berth("reap"), "retried 2 blocks, 6 MiB; released 2, 6 MiB\n");
  EXPECT_TRUE(
      daemon_.AccountsBecome([](const Accounts& accounts) { return accounts.blocks == 1 && accounts.retired == 0; }));
  EXPECT_EQ(Must(daemon_.inspector().ReapBlocks()).tried_blocks(), 0u);
  actor.Do("drop c");
  actor.Allocate("d", 16 * kMiB);
  actor.Quit();
  daemon_.ExpectAccountsBack();
}

TEST_P(ReapTest, NextWorkerRetriesReleaseAfterOwnersDeath) {
  Actor actor(daemon_);
  actor.Allocate("a", 4 * kMiB);
  BeStubborn();
  actor.Kill();
  ASSERT_TRUE(Stuck(1, 4 * kMiB)) << Describe(daemon_.TakeAccounts());
  Relent();
  // Memory that a context worker made ends with that worker.
  EXPECT_TRUE(Ok(GetParam() == std::string("fd") ? daemon_.inspector().RestartDevice(0)
                                                 : daemon_.inspector().RestartContext(0)));
  daemon_.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
