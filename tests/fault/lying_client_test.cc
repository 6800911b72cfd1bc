// A client that makes false statements: it can hurt only itself, and clients that share a block with it.

#include <string>

#include <berth/block_handle.h>
#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr uint64_t kBytes = 1 << 20;

// A liar and an honest client, who share the block "b" of a third; the honest client also has a block "own".
struct Sharers {
  explicit Sharers(const TestDaemon& daemon) : owner(daemon), liar(daemon), honest(daemon) {
    const BlockHandle handle = owner.Allocate("b", kBytes);
    owner.Do("map b");
    owner.Do("fill b 1");
    for (Actor* const actor : {&liar, &honest}) {
      owner.Do(absl::StrCat("grant-session b ", actor->session().value()));
      actor->Do("stream s");
      actor->Do(absl::StrCat("import b ", FormatHandle(handle)));
      actor->Do("map b");
    }
    honest.Do("stream t");
    honest.Allocate("own", kBytes);
    honest.Do("map own");
  }
  // The honest client works on its own block, on another stream, undisturbed.
  void WorkElsewhere() {
    honest.Do("preflight e t own:w");
    honest.Do("queue-fill t own 3");
    honest.Do("commit e");
    EXPECT_TRUE(Ok(honest.Ask("sync t")));
  }
  Actor owner;
  Actor liar;
  Actor honest;
};

TEST(LyingClientTest, FalseFenceValueBlocksSharersUntilItsSenderDies) {
  TestDaemon daemon;
  Sharers sharers(daemon);
  sharers.liar.Do("claim-finish b 1000000");
  EXPECT_EQ(sharers.honest.Do("preflight r s b:r"), "");
  sharers.honest.Do("queue-check s b 1");
  sharers.honest.Do("commit r");
  sharers.WorkElsewhere();
  sharers.honest.SendLine("sync s");
  sharers.liar.Kill();
  EXPECT_TRUE(Ok(sharers.honest.Answer()));
  EXPECT_EQ(sharers.honest.Do("preflight r s b:r"), "torn");
  sharers.honest.Do("commit r");
  sharers.honest.Quit();
  sharers.owner.Quit();
  daemon.ExpectAccountsBack();
}

TEST(LyingClientTest, InvalidFenceValueIsRejectedAndChangesNothing) {
  TestDaemon daemon;
  Sharers sharers(daemon);
  for (const char* const value : {"0", "9223372036854775807", "18446744073709551615"}) {
    EXPECT_TRUE(Refused(sharers.liar.Ask(absl::StrCat("claim-finish b ", value)), Reason::kInvalidField))
        << value;
  }
  // Uses and streams of another process, or that do not exist, are not found.
  sharers.honest.Do("preflight r s b:r");
  for (int use = 0; use < 10; ++use) {
    EXPECT_TRUE(Refused(sharers.liar.Ask(absl::StrCat("claim-use ", use, " 1")), Reason::kNotFound)) << use;
  }
  for (const int slot : {9, 251, 252, 1'000'000}) {
    EXPECT_TRUE(Refused(sharers.liar.Ask(absl::StrCat("claim-prepare b ", slot)), Reason::kNotFound)) << slot;
  }
  sharers.honest.Do("commit r");
  sharers.liar.Quit();
  EXPECT_EQ(sharers.honest.Do("preflight r s b:r"), "");
  sharers.honest.Do("commit r");
  sharers.honest.Quit();
  sharers.owner.Quit();
  daemon.ExpectAccountsBack();
}

TEST(LyingClientTest, RetainedMappingExposesNoForeignMemory) {
  TestDaemon daemon;
  Sharers sharers(daemon);
  sharers.liar.Do("retain b");
  sharers.liar.Do("unmap b");
  sharers.liar.Do("drop b");
  sharers.honest.Do("unmap b");
  sharers.honest.Do("drop b");
  sharers.owner.Do("unmap b");
  sharers.owner.Do("free b");
  sharers.owner.Do("drop b");
  // By the accounting the bytes are back, and another client can allocate as many.
  ASSERT_TRUE(
      daemon.AccountsBecome([](const Accounts& accounts) { return accounts.quarantined + accounts.retired == 0; }));
  sharers.owner.Allocate("next", kBytes);
  sharers.owner.Do("map next");
  sharers.owner.Do("fill next 9");
  EXPECT_TRUE(Ok(sharers.liar.Ask("check-retained b 1")));
  sharers.liar.Do("fill-retained b 7");
  EXPECT_TRUE(Ok(sharers.owner.Ask("check next 9")));
  sharers.honest.Quit();
  sharers.owner.Quit();
  sharers.liar.Quit();
  daemon.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
