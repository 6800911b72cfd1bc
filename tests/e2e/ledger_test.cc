// A ledger that a new broker cannot read: it grants nothing, says why, and `berth reset` is the way out.

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/inspector.h"
#include "client/session.h"
#include "common/boot_id.h"
#include "common/error.h"
#include "common/unique_fd.h"
#include "daemon/core/row_kind.h"
#include "daemon/ledger/ledger_file.h"
#include "gtest/gtest.h"
#include "tests/support/actor_handle.h"
#include "tests/support/subprocess.h"
#include "tests/support/test_daemon.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

class LedgerTest : public ::testing::Test {
 protected:
  std::string path() const { return daemon_.folder() + "/ledger"; }

  std::string Content() const {
    std::ostringstream text;
    text << std::ifstream(path(), std::ios::binary).rdbuf();
    return text.str();
  }
  // Kills the broker, does something to its ledger, and lets the vault start the next.
  void KillBrokerAnd(const std::function<void()>& damage) {
    daemon_.vault().Signal(SIGSTOP);
    ASSERT_EQ(::kill(daemon_.broker(), SIGKILL), 0);
    damage();
    daemon_.vault().Signal(SIGCONT);
  }
  // What `berth` with these words prints, and its exit code.
  std::pair<std::string, int> Run(const std::string& words) {
    Subprocess command = Subprocess::Start(
        {.argv = {"/bin/sh", "-c", absl::StrCat("\"$0\" ", words, " 2>&1"), ProgramPath("client/cli/berth")},
         .environment = {absl::StrCat("BERTH_FOLDER=", daemon_.folder()), "BERTH_SESSION"}});
    std::string text = command.ReadAll();
    return {text, command.Wait()};
  }

  TestDaemon daemon_;
};

class UnreadableLedgerTest : public LedgerTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(UnreadableLedgerTest, OneThatCannotBeReadIsSaidAndResetIsTheWayOut) {
  const std::string what = GetParam();
  Actor holder(daemon_);
  holder.Do("acquire p");
  holder.Do("allocate b 1048576");
  const v1::Node node = Must(daemon_.inspector().GetNode());
  const uint64_t incarnation = node.incarnation();
  KillBrokerAnd([&] {
    LedgerIdentity identity = {.schema = core::kRowSchema, .node = node.id(), .incarnation = incarnation};
    if (what == "of version 1.99") {
      identity.schema = 99;
      identity.boot = Must(ReadBootId());
      ASSERT_TRUE(Ok(LedgerFile::Create(path(), identity)));
      return;
    }
    if (what == "another boot") {
      identity.boot = "00000000-0000-0000-0000-000000000000";
      ASSERT_TRUE(Ok(LedgerFile::Create(path(), identity)));
      return;
    }
    if (what == "gone") {
      ASSERT_EQ(::unlink(path().c_str()), 0);
      return;
    }
    const UniqueFd file(::open(path().c_str(), O_RDWR));
    ASSERT_TRUE(file);
    if (what == "cut short") {
      ASSERT_EQ(::ftruncate(file.get(), 200), 0);
    } else if (what == "is damaged") {
      ASSERT_EQ(::pwrite(file.get(), "\xff\xff", 2, 230), 2);
    } else {
      ASSERT_EQ(::pwrite(file.get(), "something", 9, 0), 9);
    }
  });
  const std::string found = Content();
  Actor other(daemon_);
  const absl::Status refused = other.Ask("acquire p").status();
  EXPECT_TRUE(Refused(refused, Reason::kLedgerUnreadable, {{"path", path()}})) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "berth reset")) << refused;
  if (what != "gone") {
    EXPECT_TRUE(absl::StrContains(refused.message(), what)) << refused;
  }
  EXPECT_TRUE(Refused(other.Ask("allocate b 4096"), Reason::kLedgerUnreadable));
  const auto [health, sick] = Run("health");
  EXPECT_EQ(sick, 1) << health;
  EXPECT_TRUE(absl::StrContains(health, path())) << health;
  const auto [status, looked] = Run("status");
  EXPECT_EQ(looked, 0) << status;
  EXPECT_TRUE(absl::StrContains(status, "Nothing is granted")) << status;
  // Another broker finds the same.
  KillBrokerAnd([] {});
  EXPECT_TRUE(Eventually([&] { return Run("health").second == 1; }));
  EXPECT_EQ(Content(), found) << "what cannot be read is left as it is";

  EXPECT_EQ(Run("reset").second, 0);
  EXPECT_TRUE(Eventually([&] { return Run("health").second == 0; }));
  EXPECT_NE(Must(daemon_.inspector().GetNode()).incarnation(), incarnation);
  EXPECT_TRUE(Eventually([&] { return !holder.Ask("status").ok(); }));
  Actor next(daemon_);
  EXPECT_TRUE(Ok(next.Ask("acquire p try")));
  next.Quit();
  other.Quit();
  holder.Quit();
  daemon_.ExpectBooksBack();
}

INSTANTIATE_TEST_SUITE_P(Damage, UnreadableLedgerTest,
                         ::testing::Values("gone", "cut short", "is damaged", "no ledger", "of version 1.99",
                                           "another boot"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = c == ' ' || c == '.' ? '_' : c;
                           return name;
                         });

TEST_F(LedgerTest, AResetEndsWhatIsOutAndBeginsAnew) {
  Actor holder(daemon_);
  holder.Do("acquire p");
  holder.Do("allocate b 1048576");
  holder.Do("map b");
  holder.Do("fill b 4");
  const uint64_t incarnation = Must(daemon_.inspector().GetNode()).incarnation();
  EXPECT_EQ(Run("reset").second, 0);
  EXPECT_TRUE(Eventually([&] { return !holder.Ask("status").ok(); }));
  EXPECT_TRUE(Refused(holder.Ask("access b"), Reason::kStale));
  // What it has mapped is still its own memory.
  EXPECT_TRUE(Ok(holder.Ask("check b 4")));
  EXPECT_TRUE(Eventually([&] { return Run("health").second == 0; }));
  EXPECT_NE(Must(daemon_.inspector().GetNode()).incarnation(), incarnation);
  holder.Quit();
  daemon_.ExpectBooksBack();
}

TEST_F(LedgerTest, AResetIsForOperators) {
  Actor holder(daemon_);
  holder.Do("acquire p");
  {
    const Inspector inspector(Must(Session::Open({.folder = daemon_.folder()})));
    EXPECT_TRUE(Refused(inspector.ResetNode().status(), Reason::kAdminOnly));
  }
  EXPECT_TRUE(Ok(holder.Ask("release p")));
  holder.Quit();
  daemon_.ExpectBooksBack();
}

}  // namespace
}  // namespace berth::testing
