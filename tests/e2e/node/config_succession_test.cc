// The configuration file around the deaths and upgrades of the daemon's processes: a SIGHUP that arrives meanwhile
// takes effect, and an unusable file changes nothing.
//
// BERTH_FAULT_SEED seeds the moments.

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "berth/v1/admin.pb.h"
#include "berth/v1/device.pb.h"
#include "client/sdk/admin/inspector.h"
#include "gtest/gtest.h"
#include "tests/support/daemon/installed.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/environment.h"
#include "tests/support/proc.h"
#include "tests/support/random_moment.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

namespace fs = std::filesystem;

std::string TextWithCap(int cap) {
  return absl::StrCat("[pools.gpu-tests]\ncap = 3\n[pools.b]\ncap = ", cap, "\n[tenants]\npermits = 7\n");
}

class ConfigSuccessionTest : public ::testing::Test {
 protected:
  ConfigSuccessionTest() : daemon_({.program = installed_.path(), .config = TextWithCap(cap_)}) {}

  // Replaces the file by one with another cap, in one step.
  void ChangeCap() {
    const std::string path = daemon_.config_path();
    std::ofstream(path + ".new") << TextWithCap(++cap_);
    fs::rename(path + ".new", path);
  }
  std::string Value(const std::string& key) {
    const v1::Config config = Must(daemon_.inspector().GetConfig());
    for (const v1::ConfigValue& value : config.values()) {
      if (value.key() == key) return value.value();
    }
    return "";
  }
  // Whether the cap of the file takes effect.
  bool CapFollows() {
    return Eventually([&] { return Value("pools.b.cap") == absl::StrCat(cap_); });
  }
  static void Stop(pid_t pid) {
    ASSERT_EQ(::kill(pid, SIGSTOP), 0);
    ASSERT_TRUE(Eventually([pid] { return StateOf(pid) == 'T'; }));
  }
  void Hup() const { ::kill(daemon_.supervisor_pid(), SIGHUP); }
  void Upgrade() {
    // The broker may end before its answer arrives.
    daemon_.GetNode();
    daemon_.inspector().UpgradeNode().status().IgnoreError();
  }
  // Counts the records of the audit log with both texts.
  int CountAudited(const std::string& one, const std::string& other) const {
    std::ifstream file(absl::StrCat(daemon_.folder(), "/state/audit.jsonl"));
    int count = 0;
    for (std::string line; std::getline(file, line);) {
      count += absl::StrContains(line, one) && absl::StrContains(line, other) ? 1 : 0;
    }
    return count;
  }

  int cap_ = 4;
  Installed installed_;
  TestDaemon daemon_;
  std::mt19937_64 random_{SeedFromEnvironment("BERTH_FAULT_SEED")};
};

TEST_F(ConfigSuccessionTest, SignalToKilledSupervisorTakesEffect) {
  for (int life = 0; life < 3; ++life) {
    daemon_.GetNode();
    const pid_t supervisor = daemon_.supervisor_pid();
    ASSERT_NO_FATAL_FAILURE(Stop(supervisor));
    ChangeCap();
    Hup();
    ASSERT_EQ(::kill(supervisor, SIGKILL), 0);
    daemon_.AwaitSupervisorAfter(supervisor);
    EXPECT_TRUE(CapFollows()) << life;
  }
}

TEST_F(ConfigSuccessionTest, SignalBetweenTwoBrokersTakesEffect) {
  const pid_t supervisor = daemon_.supervisor_pid();
  for (const bool before_death : {true, false}) {
    SCOPED_TRACE(before_death);
    const pid_t broker = daemon_.broker();
    // Until it continues, the supervisor neither passes the signal on nor starts another broker.
    ASSERT_NO_FATAL_FAILURE(Stop(supervisor));
    if (!before_death) {
      ASSERT_EQ(::kill(broker, SIGKILL), 0);
      ASSERT_TRUE(Eventually([broker] { return !IsAlive(broker); }));
    }
    ChangeCap();
    Hup();
    if (before_death) ::kill(broker, SIGKILL);
    ::kill(supervisor, SIGCONT);
    daemon_.AwaitBrokerAfter(broker);
    EXPECT_TRUE(CapFollows());
  }
}

TEST_F(ConfigSuccessionTest, SignalAtAnyMomentOfSuccessionTakesEffect) {
  const std::vector<std::pair<const char*, std::function<void()>>> successions = {
      {"broker", [this] { ::kill(daemon_.broker(), SIGKILL); }},
      {"supervisor",
       [this] {
         const pid_t supervisor = daemon_.supervisor_pid();
         ::kill(supervisor, SIGKILL);
         // A signal to the dead one has no effect, and its sender learns that.
         daemon_.AwaitSupervisorAfter(supervisor);
       }},
      {"upgrade", [this] {
         installed_.Install();
         Upgrade();
       }}};
  const uint64_t rounds = GateOrSoak(4, 40);
  for (const auto& [name, begin] : successions) {
    for (uint64_t round = 0; round < rounds; ++round) {
      SCOPED_TRACE(absl::StrCat(name, ", round ", round));
      daemon_.GetNode();
      begin();
      AwaitRandomMoment(random_, absl::Milliseconds(100));
      ChangeCap();
      Hup();
      ASSERT_TRUE(CapFollows());
    }
  }
}

// The signal is pending as the supervisor execs a program that ends at once.
TEST_F(ConfigSuccessionTest, SignalDuringFailedUpgradeTakesEffect) {
  const pid_t supervisor = daemon_.supervisor_pid();
  std::ofstream(installed_.path() + ".bad") << "#!/bin/sh\nexit 1\n";
  fs::permissions(installed_.path() + ".bad", fs::perms(0755));
  fs::rename(installed_.path() + ".bad", installed_.path());
  ASSERT_NO_FATAL_FAILURE(Stop(supervisor));
  Upgrade();
  ChangeCap();
  Hup();
  ::kill(supervisor, SIGCONT);
  daemon_.AwaitSupervisorAfter(supervisor);
  EXPECT_TRUE(CapFollows());
}

TEST_F(ConfigSuccessionTest, UnusableFileChangesNothing) {
  const std::string path = daemon_.config_path();
  const std::vector<std::pair<const char*, std::function<void()>>> files = {
      {"empty", [&] { std::ofstream(path, std::ios::trunc).flush(); }},
      {"NULs", [&] { std::ofstream(path) << std::string(4096, '\0'); }},
      {"a folder", [&] { ::mkdir(path.c_str(), 0700); }},
      {"a FIFO", [&] { ::mkfifo(path.c_str(), 0600); }},
      {"endless", [&] { fs::create_symlink("/dev/zero", path); }},
      {"endless without a size", [&] { fs::create_symlink("/proc/self/pagemap", path); }}};
  // Each makes the daemon read the file, and waits for the record of the mistake.
  const auto expect = [this](const char* what, const char* with, const std::function<void()>& happen) {
    const int before = CountAudited(what, with);
    happen();
    EXPECT_TRUE(Eventually([&] { return CountAudited(what, with) > before; })) << what;
  };
  const std::vector<std::pair<const char*, std::function<void()>>> moments = {
      {"SIGHUP", [&] { expect("\"reload\"", "refused", [this] { Hup(); }); }},
      {"the broker's death", [&] { expect("\"keep_config\"", "cause", [this] { daemon_.KillBroker(); }); }},
      {"the supervisor's death", [&] { expect("\"reload\"", "refused", [this] { daemon_.KillSupervisor(); }); }},
      {"an upgrade", [&] {
         installed_.Install();
         expect("\"keep_config\"", "cause", [this] { Upgrade(); });
       }}};
  for (const auto& [file, make] : files) {
    for (const auto& [moment, happen] : moments) {
      SCOPED_TRACE(absl::StrCat(file, " at ", moment));
      fs::remove(path);
      make();
      daemon_.GetNode();
      happen();
      EXPECT_EQ(Value("pools.b.cap"), "4");
      EXPECT_EQ(Value("tenants.permits"), "7");
    }
  }
  fs::remove(path);
  ChangeCap();
  Hup();
  EXPECT_TRUE(CapFollows());
}

}  // namespace
}  // namespace berth::testing
