// The configuration as it is shown, and read anew while the daemon runs.

#include <unistd.h>

#include <fstream>
#include <map>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "client/cancellation.h"
#include "client/inspector.h"
#include "common/error.h"
#include "gtest/gtest.h"
#include "tests/support/actor_handle.h"
#include "tests/support/test_daemon.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

using Source = v1::ConfigValue;

using absl::Notification;

constexpr char kConfig[] =
    "[pools.gpu-tests]\ncap = 3\n[pools.b]\ncap = 4\n[memory]\nwarm_limit = \"64MiB\"\n";

std::map<std::string, v1::ConfigValue> Shown(TestDaemon& daemon) {
  std::map<std::string, v1::ConfigValue> values;
  const v1::Config config = Must(daemon.inspector().GetConfig(), "the configuration");
  for (const v1::ConfigValue& value : config.values()) values[value.key()] = value;
  return values;
}

void Write(const TestDaemon& daemon, const std::string& text) { std::ofstream(daemon.config_path()) << text; }

TEST(ConfigTest, EveryValueIsShownWithWhereItCameFrom) {
  TestDaemon daemon({.flags = {"--max-connections=100"},
                     .config = kConfig,
                     .environment = {"REALIZAR_GPU_TEST_CONCURRENCY=x"}});
  std::map<std::string, v1::ConfigValue> shown = Shown(daemon);
  const v1::ConfigValue cap = shown["pools.gpu-tests.cap"];
  EXPECT_EQ(cap.value(), "2") << "what is no number is 2";
  EXPECT_EQ(cap.source(), Source::ENVIRONMENT);
  EXPECT_EQ(cap.where(), "REALIZAR_GPU_TEST_CONCURRENCY=x");
  EXPECT_EQ(shown["pools.b.cap"].value(), "4");
  EXPECT_EQ(shown["pools.b.cap"].source(), Source::FILE);
  EXPECT_EQ(shown["pools.b.cap"].where(), absl::StrCat(daemon.config_path(), ":4"));
  EXPECT_EQ(shown["pools.b.ageing"].source(), Source::DEFAULT);
  EXPECT_EQ(shown["pools.b.ageing"].value(), "10m");
  EXPECT_EQ(shown["limits.connections"].value(), "100");
  EXPECT_EQ(shown["limits.connections"].source(), Source::FLAG);
  EXPECT_EQ(shown["limits.connections"].where(), "--max-connections");
  EXPECT_EQ(shown["memory.warm_limit"].source(), Source::FILE);
  EXPECT_FALSE(shown["memory.warm_limit"].while_running());
  v1::SetPoolRequest change;
  change.set_pool("b");
  change.set_cap(7);
  Must(daemon.inspector().SetPool(change));
  shown = Shown(daemon);
  EXPECT_EQ(shown["pools.b.cap"].value(), "7");
  EXPECT_EQ(shown["pools.b.cap"].source(), Source::OPERATOR);
}

TEST(ConfigTest, AReloadChangesWhatCanChangeAndNamesWhatCannot) {
  TestDaemon daemon({.config = kConfig});
  Actor holder(daemon), waiter(daemon);
  holder.Do("acquire p pool=b units=4");
  waiter.Tell("acquire p pool=b units=2");
  ASSERT_TRUE(Eventually([&] { return Must(daemon.inspector().ListPermits()).waiters_size() == 1; }));
  EXPECT_EQ(Must(daemon.inspector().ReloadConfig()).changes_size(), 0);
  Write(daemon,
        "[pools.gpu-tests]\ncap = 3\n[pools.b]\ncap = 6\nhold_warning = \"1h\"\n[pools.c]\ncap = 1\n"
        "[memory]\nwarm_limit = \"32MiB\"\ndevice_budget = \"128MiB\"\n");
  std::map<std::string, v1::ReloadConfigResponse::Change> changes;
  const v1::ReloadConfigResponse answer = Must(daemon.inspector().ReloadConfig());
  for (const auto& change : answer.changes()) changes[change.key()] = change;
  EXPECT_EQ(changes["pools.b.cap"].from(), "4");
  EXPECT_EQ(changes["pools.b.cap"].to(), "6");
  EXPECT_EQ(changes["pools.b.cap"].why_not(), "");
  EXPECT_EQ(changes["pools.b.hold_warning"].why_not(), "");
  EXPECT_EQ(changes["memory.device_budget"].why_not(), "");
  EXPECT_NE(changes["memory.warm_limit"].why_not(), "");
  EXPECT_NE(changes["pools.c.cap"].why_not(), "");
  EXPECT_EQ(changes.count("pools.gpu-tests.cap"), 0u);
  EXPECT_TRUE(Ok(waiter.Answer())) << "a raised cap serves who waits";
  const v1::Usage usage = Must(daemon.inspector().GetUsage());
  EXPECT_EQ(usage.devices(0).budget_bytes(), uint64_t{128} << 20);
  std::map<std::string, v1::ConfigValue> shown = Shown(daemon);
  EXPECT_EQ(shown["pools.b.cap"].value(), "6");
  EXPECT_EQ(shown["pools.b.cap"].source(), Source::FILE);
  EXPECT_EQ(shown["memory.warm_limit"].value(), "64 MiB");
  EXPECT_EQ(shown["memory.warm_limit"].pending(), "32 MiB");
  EXPECT_EQ(Must(daemon.inspector().ReloadConfig()).changes_size(), 10)
      << "what waits for a new daemon is named again";
}

TEST(ConfigTest, TenantsQuotasAreShownHoldAndChangeWhileTheDaemonRuns) {
  TestDaemon daemon({.config = absl::StrCat(kConfig, "[tenants]\npermits = 3\nsessions = 64\n")});
  {
    std::map<std::string, v1::ConfigValue> shown = Shown(daemon);
    EXPECT_EQ(shown["tenants.permits"].value(), "3");
    EXPECT_EQ(shown["tenants.permits"].where(), absl::StrCat(daemon.config_path(), ":8"));
    EXPECT_TRUE(shown["tenants.permits"].while_running());
    EXPECT_EQ(shown["tenants.streams"].value(), "none");
    Actor holder(daemon), waiter(daemon);
    holder.Do("acquire p pool=b units=2");
    holder.Do("acquire q");
    const absl::Status never = waiter.Ask("acquire r pool=b units=4").status();
    EXPECT_TRUE(Refused(never, Reason::kOverCap, {{"asked", "4"}, {"cap", "3"}})) << never;
    waiter.Tell("acquire r pool=b");
    ASSERT_TRUE(Eventually([&] { return Must(daemon.inspector().ListPermits()).waiters_size() == 1; }));
    const uint64_t number = Must(daemon.inspector().ListPermits()).waiters(0).number();
    EXPECT_EQ(Must(daemon.inspector().ExplainWait(number)).cause(), v1::WaitExplanation::TENANT_QUOTA);
    // The row of its own comes before everybody's, and is taken away again.
    const std::string own = absl::StrCat(kConfig, "[tenants]\npermits = 3\n[tenants.", ::getuid(), "]\npermits = 5\n");
    Write(daemon, own);
    std::map<std::string, v1::ReloadConfigResponse::Change> changes;
    const v1::ReloadConfigResponse answer = Must(daemon.inspector().ReloadConfig());
    for (const auto& change : answer.changes()) changes[change.key()] = change;
    const std::string key = absl::StrCat("tenants.", ::getuid(), ".permits");
    EXPECT_EQ(changes[key].to(), "5");
    EXPECT_EQ(changes[key].why_not(), "");
    EXPECT_EQ(changes["tenants.sessions"].to(), "none");
    EXPECT_TRUE(Ok(waiter.Answer())) << "a raised quota serves who waits";
    EXPECT_EQ(Shown(daemon)[key].where(), absl::StrCat(daemon.config_path(), ":10"));
    Write(daemon, absl::StrCat(kConfig, "[tenants]\npermits = 3\n"));
    Must(daemon.inspector().ReloadConfig());
    EXPECT_EQ(Shown(daemon).count(key), 0u);
    Actor third(daemon);
    EXPECT_TRUE(Refused(third.Ask("acquire s pool=b try"), Reason::kNoPermit, {{"out", "4"}, {"cap", "3"}}));
    // A broker that follows goes by the file as it is then.
    Write(daemon, absl::StrCat(kConfig, "[tenants]\npermits = 9\n"));
    daemon.KillBroker();
    third.Do("acquire s pool=b try");
  }
  daemon.ExpectBooksBack();
}

TEST(ConfigTest, ATenantHasNoMoreSessionsAndWatchesThanItsQuota) {
  TestDaemon daemon({.config = "[tenants]\nstreams = 1\nsessions = 4\n"});
  {
    // One is the test's own.
    Actor one(daemon), two(daemon), three(daemon);
    Actor fourth(daemon, {.open = false});
    const absl::Status refused = fourth.Ask("open").status();
    EXPECT_TRUE(Refused(refused, Reason::kLimit)) << refused;
    Cancellation cancel;
    const Inspector watcher(daemon.admin_session(), &cancel);
    Notification heard;
    std::thread thread([&] {
      const absl::Status ended = watcher.WatchDevices([&](const v1::WatchDevicesResponse&) {
        if (!heard.HasBeenNotified()) heard.Notify();
        return true;
      });
      EXPECT_TRUE(absl::IsCancelled(ended)) << ended;
    });
    heard.WaitForNotification();
    const absl::Status second =
        daemon.inspector().WatchDevices([](const v1::WatchDevicesResponse&) { return true; });
    EXPECT_TRUE(Refused(second, Reason::kLimit, {{"what", "watches of the tenant"}, {"limit", "1"}})) << second;
    cancel.Cancel();
    thread.join();
  }
  daemon.ExpectBooksBack();
}

TEST(ConfigTest, WhatAnOperatorSetStaysUnlessTheFileSaysOtherwiseThanBefore) {
  TestDaemon daemon({.config = kConfig});
  v1::SetPoolRequest change;
  change.set_pool("b");
  change.set_cap(7);
  change.set_tenant_cap(2);
  Must(daemon.inspector().SetPool(change));
  EXPECT_EQ(Must(daemon.inspector().ReloadConfig()).changes_size(), 0);
  EXPECT_EQ(Shown(daemon)["pools.b.cap"].value(), "7");
  Write(daemon, "[pools.gpu-tests]\ncap = 3\n[pools.b]\ncap = 5\n[memory]\nwarm_limit = \"64MiB\"\n");
  Must(daemon.inspector().ReloadConfig());
  EXPECT_EQ(Shown(daemon)["pools.b.cap"].value(), "5");
  EXPECT_EQ(Shown(daemon)["pools.b.tenant_cap"].value(), "2");
}

TEST(ConfigTest, AMistakeNamesLineAndKeyAndTheOldConfigurationStays) {
  TestDaemon daemon({.config = kConfig});
  const std::map<std::string, v1::ConfigValue> before = Shown(daemon);
  for (const auto& [text, where] : std::vector<std::pair<std::string, std::string>>{
           {"[pools.gpu-tests]\ncap = 9\n[pools.b]\ncapp = 4\n", ":4: pools.b.capp"},
           {"[pools.b]\ncap = 0\n", ":2: pools.b.cap"},
           {"[pools.b]\ncap = -1\n", ":2: pools.b.cap"},
           {"[pools.b]\ncap = \"x\"\n", ":2: pools.b.cap"},
           {"[tenants]\npermitz = 1\n", ":2: tenants.permitz"},
           {"[tenants]\npermits = 0\n", ":2: tenants.permits"},
           {"[tenants.root]\npermits = 1\n", ":1: tenants.root"},
           {"[tenants.7]\nfoo = 1\n", ":2: tenants.7.foo"},
           {"[pools.b\n", ":1"}}) {
    Write(daemon, text);
    const absl::Status status = daemon.inspector().ReloadConfig().status();
    EXPECT_TRUE(IsRefusal(status, Reason::kInvalidField)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), absl::StrCat(daemon.config_path(), where))) << status;
    const std::map<std::string, v1::ConfigValue> after = Shown(daemon);
    ASSERT_EQ(after.size(), before.size());
    for (const auto& [key, value] : before) {
      EXPECT_EQ(after.at(key).SerializeAsString(), value.SerializeAsString()) << key;
    }
  }
}

}  // namespace
}  // namespace berth::testing
