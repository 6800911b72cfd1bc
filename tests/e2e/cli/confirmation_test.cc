// Commands that end leases ask first. Without a terminal they refuse, name --yes, and change nothing. `berth reset`
// asks only while the ledger is unreadable: tests/e2e/recovery/ledger_test.cc.

#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "berth/v1/admin.pb.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/resources.pb.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/berth_command.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

class ConfirmationTest : public ::testing::Test {
 protected:
  // Adds the commands below `words` in the help to `all`, and those that have --yes or whose description says that
  // they ask to `asking`.
  void AddCommands(const std::vector<std::string>& words, std::set<std::string>* all, std::set<std::string>* asking) {
    std::vector<std::string> asks_help = words;
    asks_help.push_back("--help");
    const std::string help = berth_.Show(asks_help);
    const std::string name = absl::StrJoin(words, " ");
    std::vector<std::string> verbs;
    bool lists = false;
    for (const absl::string_view line : absl::StrSplit(help, '\n')) {
      const bool begins_entry = line.size() > 2 && line.substr(0, 2) == "  " && line[2] != ' ';
      if (!line.empty() && line[0] != ' ') lists = line == "Subcommands:";
      if (lists && begins_entry) verbs.emplace_back(line.substr(2, line.find(' ', 2) - 2));
      if (absl::StartsWith(line, "  --yes")) asking->insert(name);
      if (!absl::StrContains(line, "asks")) continue;
      asking->insert(lists ? absl::StrCat(name, name.empty() ? "" : " ", verbs.back()) : name);
    }
    if (!words.empty()) all->insert(name);
    for (const std::string& verb : verbs) {
      std::vector<std::string> deeper = words;
      deeper.push_back(verb);
      AddCommands(deeper, all, asking);
    }
  }

  TestDaemon daemon_;
  BerthCommand berth_{daemon_.folder()};
};

TEST_F(ConfirmationTest, CommandsWithoutTerminalRefuseAndChangeNothing) {
  Actor holder(daemon_);
  holder.Do("acquire p label=nightly");
  holder.Allocate("b", 4096);
  holder.Do("map b");
  const uint64_t incarnation = daemon_.GetNode().incarnation();
  const struct {
    std::vector<std::string> words;
    const char* effect;
  } kCases[] = {
      {{"device", "reset", "0"}, "The reset makes those blocks stale"},
      {{"device", "drop", "0"}, "The drop makes those blocks stale"},
      {{"stop"}, "Permits and waiting requests survive"},
      {{"stop", "--drain"}, "stops when every lease has ended"},
      {{"stop", "--drain", "--timeout", "5m"}, "or after 5m"},
      {{"stop", "--end-leases"}, "ends every lease"},
  };
  // An answer that does not come from a terminal is no answer.
  const char* const kInputs[] = {"</dev/null", "<&-", "<<< y"};
  for (const auto& each : kCases) {
    for (const char* const input : kInputs) {
      SCOPED_TRACE(absl::StrCat(absl::StrJoin(each.words, " "), " ", input));
      Subprocess refused =
          berth_.Start(each.words, {"/bin/bash", "-c", absl::StrCat("exec \"$@\" 2>&1 ", input), "bash"});
      const std::string said = refused.ReadAll();
      EXPECT_EQ(refused.Wait(), 1) << said;
      for (const char* const part : {each.effect, "1 block",
                                     "nothing changed: no terminal to ask for confirmation; add --yes"}) {
        EXPECT_TRUE(absl::StrContains(said, part)) << said << " lacks " << part;
      }
    }
  }
  EXPECT_EQ(Must(daemon_.inspector().ListDevices()).devices(0).state(), v1::Device::READY);
  EXPECT_EQ(daemon_.GetNode().incarnation(), incarnation);
  EXPECT_TRUE(Ok(holder.Ask("access b")));
  // A drain that had begun would refuse this.
  Actor next(daemon_);
  EXPECT_TRUE(Ok(next.Ask("acquire p try")));
  next.Quit();
  EXPECT_TRUE(Ok(holder.Ask("release p")));
  holder.Quit();
  daemon_.ExpectAccountsBack();
}

TEST_F(ConfirmationTest, RefusalForDroppedDeviceNamesItsReturn) {
  EXPECT_EQ(berth_.Run({"device", "drop", "0", "--yes"}), 0);
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"device", "enable", "0"}, {"device", "drain", "0"}, {"device", "drop", "0", "--yes"}, {"health"}}) {
    SCOPED_TRACE(absl::StrJoin(words, " "));
    Subprocess refused = berth_.Start(words, {"/bin/sh", "-c", "exec \"$@\" 2>&1", "sh"});
    const std::string said = refused.ReadAll();
    EXPECT_EQ(refused.Wait(), 1) << said;
    EXPECT_TRUE(absl::StrContains(said, "the daemon's next start returns")) << said;
  }
}

TEST_F(ConfirmationTest, NoOtherCommandAsks) {
  std::set<std::string> all, asking;
  AddCommands({}, &all, &asking);
  EXPECT_EQ(asking, (std::set<std::string>{"device drop", "device reset", "reset", "stop"}));
  // The help was read down to the last level.
  for (const char* const name : {"run", "permits revoke", "blocks unpublish", "budget set", "sessions end"}) {
    EXPECT_TRUE(all.contains(name)) << name;
  }
}

}  // namespace
}  // namespace berth::testing
