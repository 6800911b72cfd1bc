// Memory that the driver does not take back: charged, shown with what the driver said, and taken back when it does.

#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/error.h"
#include "gtest/gtest.h"
#include "tests/support/actor_handle.h"
#include "tests/support/subprocess.h"
#include "tests/support/test_daemon.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr const char* kWords = "cuMemRelease: CUDA_ERROR_NOT_PERMITTED (800)";

class ReapTest : public EachExportKind {
 protected:
  ReapTest()
      : flag_(absl::StrCat(::testing::TempDir(), "/stubborn")),
        daemon_({.program = "tests/support/stubborn_berthd",
                 .flags = {absl::StrCat("--device-budget=", 16 * kMiB)},
                 .environment = {absl::StrCat("BERTH_STUBBORN_WHILE=", flag_)}}) {}
  ~ReapTest() override { Relent(); }

  void BeStubborn() { std::ofstream(flag_) << "no"; }
  void Relent() { ::unlink(flag_.c_str()); }

  bool Stuck(uint64_t blocks, uint64_t bytes) {
    return daemon_.BooksBecome([&](const Books& books) {
      return books.blocks == blocks && books.retired == bytes && Device().failed_releases() >= blocks;
    });
  }
  v1::Device Device() { return Must(daemon_.inspector().ListDevices()).devices(0); }
  std::string Berth(const std::string& verb) {
    Subprocess command =
        Subprocess::Start({.argv = {ProgramPath("client/cli/berth"), "--folder", daemon_.folder(), verb}});
    const std::string said = command.ReadAll();
    EXPECT_EQ(command.Wait(), 0) << said;
    return said;
  }

  const std::string flag_;
  TestDaemon daemon_;
};
INSTANTIATE_TEST_SUITE_P(Kinds, ReapTest, ReapTest::Kinds());

TEST_P(ReapTest, WhatTheDriverDoesNotTakeBackStaysChargedAndIsShownUntilAReapSucceeds) {
  Actor actor(daemon_);
  actor.Allocate("a", 4 * kMiB);
  actor.Allocate("b", 2 * kMiB);
  BeStubborn();
  actor.Do("drop a");
  actor.Do("drop b");
  ASSERT_TRUE(Stuck(2, 6 * kMiB)) << Describe(daemon_.TakeBooks());
  const v1::ListBlocksResponse stuck = Must(daemon_.inspector().ListBlocks());
  for (const v1::Block& block : stuck.blocks()) {
    EXPECT_EQ(block.release_error(), kWords);
    EXPECT_EQ(block.state(), v1::Block::RETIRED);
  }
  EXPECT_NE(Berth("blocks").find(absl::StrCat("is not taken back: ", kWords)), std::string::npos);
  EXPECT_NE(Berth("log").find(kWords), std::string::npos);
  // To the byte: what is left of the budget is served, and no more.
  EXPECT_TRUE(Refused(actor.Ask(absl::StrCat("allocate c ", 10 * kMiB + 1)), Reason::kOverBudget));
  actor.Do(absl::StrCat("allocate c ", 10 * kMiB));
  // Tried again in vain, and again when the driver relents.
  v1::ReapBlocksResponse reaped = Must(daemon_.inspector().ReapBlocks());
  EXPECT_EQ(reaped.tried_blocks(), 2u);
  EXPECT_EQ(reaped.returned_blocks(), 0u);
  // And the live one.
  ASSERT_TRUE(Stuck(3, 6 * kMiB));
  Relent();
  EXPECT_EQ(Berth("reap"), "tried 2 blocks, 6 MiB; back 2, 6 MiB\n");
  EXPECT_TRUE(
      daemon_.BooksBecome([](const Books& books) { return books.blocks == 1 && books.retired == 0; }));
  EXPECT_EQ(Must(daemon_.inspector().ReapBlocks()).tried_blocks(), 0u);
  actor.Do("drop c");
  actor.Allocate("d", 16 * kMiB);
  actor.Quit();
  daemon_.ExpectBooksBack();
}

TEST_P(ReapTest, TheNextWorkerIsAskedAgainAndAKilledOwnerChangesNothing) {
  Actor actor(daemon_);
  actor.Allocate("a", 4 * kMiB);
  BeStubborn();
  actor.Kill();
  ASSERT_TRUE(Stuck(1, 4 * kMiB)) << Describe(daemon_.TakeBooks());
  Relent();
  // What a context worker made goes with it.
  EXPECT_TRUE(Ok(GetParam() == std::string("fd") ? daemon_.inspector().RestartDevice(0)
                                                 : daemon_.inspector().RestartContext(0)));
  daemon_.ExpectBooksBack();
}

}  // namespace
}  // namespace berth::testing
