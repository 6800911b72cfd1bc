// `berth stop`: its output, its confirmation, its wait, and the daemon's end.

#include <signal.h>

#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/steady_clock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/berth_command.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"
#include "tests/support/whole_lines.h"

namespace berth::testing {
namespace {

class StopTest : public ::testing::Test {
 protected:
  StopTest() : daemon_({.environment = {"BERTH_GPU_TEST_CONCURRENCY=2"}}), berth_(daemon_.folder()) {}

  // Starts `berth stop`, with stderr redirected to stdout.
  Subprocess Start(std::vector<std::string> words) {
    words.insert(words.begin(), "stop");
    return berth_.Start(words, {"/bin/sh", "-c", "exec \"$@\" 2>&1", "sh"});
  }
  void ExpectStopped() {
    EXPECT_EQ(daemon_.supervisor().Wait(), 0);
    EXPECT_EQ(berth_.Run({"status"}), 69);
    daemon_.Abandon();
  }
  void ExpectServes() { EXPECT_EQ(berth_.Run({"status"}), 0); }
  bool WaitersBecome(uint64_t count) {
    return daemon_.AccountsBecome([count](const Accounts& accounts) { return accounts.waiters == count; });
  }

  // Waits until brokers have received `count` stops, as the audit log names them. Returns the time that the last one
  // may drain.
  absl::Duration AwaitDrain(size_t count) {
    std::vector<absl::Duration> drains;
    EXPECT_TRUE(Eventually([&] {
      drains.clear();
      for (const std::string& line : WholeLines(daemon_.folder() + "/state/audit.jsonl")) {
        const nlohmann::json record = nlohmann::json::parse(line);
        if (record.value("verb", "") != "StopNode") continue;
        EXPECT_TRUE(absl::ParseDuration(record.value("drain", ""), &drains.emplace_back())) << line;
      }
      return drains.size() >= count;
    }));
    return drains.empty() ? absl::ZeroDuration() : drains.back();
  }

  TestDaemon daemon_;
  BerthCommand berth_;
};

TEST_F(StopTest, IdleDaemonStopsWithoutPrompt) {
  Subprocess stop = Start({});
  const std::string said = stop.ReadAll();
  EXPECT_EQ(stop.Wait(), 0) << said;
  EXPECT_TRUE(absl::StrContains(said, "stopped with 0 units and 0 blocks")) << said;
  ExpectStopped();
}

TEST_F(StopTest, StopWithLeasesNamesThemAndNeedsYes) {
  Actor holder(daemon_);
  holder.Do("acquire p label=nightly");
  holder.Allocate("b", 4 << 20);
  Subprocess refused = Start({});
  const std::string said = refused.ReadAll();
  EXPECT_EQ(refused.Wait(), 1);
  for (const absl::string_view text : {"1 permit, 0 waiting requests, 1 block of 4 MiB", "label nightly", "--yes"}) {
    EXPECT_TRUE(absl::StrContains(said, text)) << text << " in " << said;
  }
  ExpectServes();
  Subprocess stop = Start({"--yes"});
  EXPECT_TRUE(absl::StrContains(stop.ReadAll(), "stopped with 1 unit and 1 block held by 1 session"));
  EXPECT_EQ(stop.Wait(), 0);
  ExpectStopped();
}

TEST_F(StopTest, QuestionNamesEffectOfOptions) {
  Actor holder(daemon_);
  holder.Do("acquire p");
  const struct {
    std::vector<std::string> options;
    const char* effect;
  } kCases[] = {
      {{}, "Permits and waiting requests survive the stop"},
      {{"--end-leases"}, "ends every lease"},
      {{"--drain"}, "stops when every lease has ended.\n"},
      {{"--drain", "--timeout", "5m"}, "stops when every lease has ended, or after 5m.\n"},
      {{"--drain", "--timeout", "90"}, "or after 1m30s.\nPermits that are out then survive the stop."},
      {{"--drain", "--timeout", "90", "--end-leases"}, "or after 1m30s.\nLeases that are out then end"},
      {{"--drain", "--end-leases"}, "If the command is interrupted, the daemon grants again.\n"},
  };
  for (const auto& [options, effect] : kCases) {
    Subprocess refused = Start(options);
    const std::string said = refused.ReadAll();
    EXPECT_EQ(refused.Wait(), 1);
    EXPECT_TRUE(absl::StrContains(said, effect)) << effect << " in " << said;
  }
  ExpectServes();
}

TEST_F(StopTest, StopPromptsOnTerminal) {
  Actor holder(daemon_);
  holder.Do("acquire p");
  for (const auto& [answer, code] : {std::pair("n", 1), std::pair("y", 0)}) {
    Subprocess terminal = Subprocess::Start(
        {.argv = {"/usr/bin/script", "--quiet", "--flush", "--return", "--command",
                  absl::StrCat("exec ", ProgramPath("client/cli/berth"), " stop"), "/dev/null"},
         .environment = {absl::StrCat("BERTH_FOLDER=", daemon_.folder()), "BERTH_SESSION"},
         .of_operator = true});
    terminal.WriteLine(answer);
    const std::string said = terminal.ReadAll();
    EXPECT_TRUE(absl::StrContains(said, "Stop the daemon? [y/N]")) << said;
    EXPECT_EQ(terminal.Wait(), code) << said;
    if (code != 0) ExpectServes();
  }
  ExpectStopped();
}

TEST_F(StopTest, DrainWaitsForLastLease) {
  Actor holder(daemon_);
  holder.Do("acquire p");
  holder.Allocate("b", 1 << 20);
  Subprocess stop = Start({"--drain", "--yes"});
  Actor waiter(daemon_);
  EXPECT_TRUE(Eventually([&] {
    const absl::StatusOr<std::string> tried = waiter.Ask("acquire q try");
    if (tried.ok()) waiter.Do("release q");
    return Refused(tried, Reason::kNoPermit);
  })) << "one of two units is free";
  waiter.SendLine("acquire q");
  EXPECT_TRUE(WaitersBecome(1));
  // Inside the job everything continues.
  EXPECT_TRUE(Ok(holder.Ask("acquire nested")));
  EXPECT_TRUE(Ok(holder.Ask("release nested")));
  EXPECT_TRUE(Ok(holder.Ask("free b")));
  EXPECT_TRUE(Ok(holder.Ask("release p")));
  const std::string said = stop.ReadAll();
  EXPECT_EQ(stop.Wait(), 0) << said;
  EXPECT_TRUE(absl::StrContains(said, "stopped with 0 units and 0 blocks")) << said;
  ExpectStopped();
}

TEST_F(StopTest, ExpiredDrainStopsWithLiveLeases) {
  Actor holder(daemon_);
  holder.Do("acquire p");
  Subprocess stop = Start({"--drain", "--timeout", "0.1s", "--yes"});
  EXPECT_TRUE(absl::StrContains(stop.ReadAll(), "stopped with 1 unit"));
  EXPECT_EQ(stop.Wait(), 0);
  ExpectStopped();
}

TEST_F(StopTest, NextBrokerDrainsForTimeThatIsLeft) {
  Actor holder(daemon_);
  Actor other(daemon_);
  holder.Do("acquire p");
  const absl::Time begin = SteadyNow();
  Subprocess stop = Start({"--drain", "--timeout", "1h", "--yes"});
  const absl::Duration first = AwaitDrain(1);
  const absl::Time received = SteadyNow();
  EXPECT_LE(first, absl::Hours(1));
  EXPECT_TRUE(Refused(other.Ask("acquire q try"), Reason::kNoPermit)) << "one of two units is free";
  const absl::Duration passed = SteadyNow() - received;
  daemon_.KillBroker();
  const absl::Duration second = AwaitDrain(2);
  EXPECT_LE(second, first - passed);
  EXPECT_GE(second, absl::Hours(1) - (SteadyNow() - begin));
  EXPECT_TRUE(Refused(other.Ask("acquire q try"), Reason::kNoPermit)) << "the next broker drains";
  holder.Do("release p");
  const std::string said = stop.ReadAll();
  EXPECT_EQ(stop.Wait(), 0) << said;
  EXPECT_TRUE(absl::StrContains(said, "stopped with 0 units and 0 blocks")) << said;
  ExpectStopped();
}

TEST_F(StopTest, InterruptedDrainGrantsAgain) {
  Actor holder(daemon_);
  holder.Do("acquire p");
  Subprocess stop = Start({"--drain", "--yes"});
  Actor waiter(daemon_);
  EXPECT_TRUE(Eventually([&] {
    const absl::StatusOr<std::string> tried = waiter.Ask("acquire q try");
    if (tried.ok()) waiter.Do("release q");
    return Refused(tried, Reason::kNoPermit);
  }));
  waiter.SendLine("acquire q");
  EXPECT_TRUE(WaitersBecome(1));
  const std::string stopping = "An operator is stopping the daemon: it grants no permits";
  EXPECT_TRUE(absl::StrContains(berth_.Show({"status"}), stopping));
  EXPECT_TRUE(absl::StrContains(berth_.Show({"health"}), "an operator is stopping it, so it grants no permits"));
  EXPECT_EQ(berth_.ShowJson({"health"})["node"]["stopping"], true);
  stop.Signal(SIGINT);
  EXPECT_EQ(stop.Wait(), 128 + SIGINT);
  EXPECT_TRUE(Ok(waiter.Answer()));
  EXPECT_FALSE(absl::StrContains(berth_.Show({"status"}), stopping));
  EXPECT_EQ(berth_.ShowJson({"health"})["node"]["stopping"], false);
  waiter.Quit();
  holder.Quit();
  daemon_.ExpectAccountsBack();
}

TEST_F(StopTest, InvalidCommandLineStopsNothing) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--timeout", "5"}, {"--drain", "--timeout", "soon"}, {"now"}}) {
    EXPECT_EQ(Start(words).Wait(), 64) << words[0];
  }
  ExpectServes();
}

TEST(StopLogTest, DaemonLogsLiveLeases) {
  const std::string log = absl::StrCat(::testing::TempDir(), "/berthd.log");
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=2"}, .errors = log});
  Actor holder(daemon);
  holder.Do("acquire p units=2");
  holder.Allocate("b", 4 << 20);
  daemon.Stop();
  std::stringstream text;
  text << std::ifstream(log).rdbuf();
  EXPECT_TRUE(absl::StrContains(text.str(), "2 permit units and 1 blocks (4194304 bytes) of 1 sessions are out"))
      << text.str();
}

}  // namespace
}  // namespace berth::testing
