// The configuration as it is shown, and as it is reloaded while the daemon runs.

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <berth/cancellation.h>
#include <berth/error.h>
#include <berth/session.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "berth/v1/admin.pb.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/memory.pb.h"
#include "berth/v1/permit.pb.h"
#include "client/sdk/admin/inspector.h"
#include "common/notification.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

using Source = v1::ConfigValue;

constexpr char kConfig[] =
    "[pools.gpu-tests]\ncap = 3\n[pools.b]\ncap = 4\n[memory]\nwarm_limit = \"64MiB\"\n";

std::map<std::string, v1::ConfigValue> Shown(TestDaemon& daemon) {
  std::map<std::string, v1::ConfigValue> values;
  const v1::Config config = Must(daemon.inspector().GetConfig(), "the configuration");
  for (const v1::ConfigValue& value : config.values()) values[value.key()] = value;
  return values;
}

void Write(const TestDaemon& daemon, const std::string& text) { std::ofstream(daemon.config_path()) << text; }

TEST(ConfigTest, EachConfigValueIsShownWithOrigin) {
  TestDaemon daemon({.flags = {"--max-connections=100", "--pool=gpu-tests=9", "--pool=wide=16"},
                     .config = absl::StrCat(kConfig, "[pools.wide]\ncap = 8\ntenant_cap = 6\n"),
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
  EXPECT_EQ(shown["pools.wide.cap"].value(), "16") << "a flag's word comes before the file's";
  EXPECT_EQ(shown["pools.wide.cap"].source(), Source::FLAG);
  EXPECT_EQ(shown["pools.wide.cap"].where(), "--pool");
  EXPECT_EQ(shown["pools.wide.tenant_cap"].value(), "6");
  EXPECT_EQ(Must(daemon.inspector().ReloadConfig()).changes_size(), 0) << "and again when that is read anew";
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
  // An operator's terminal shows the same.
  Subprocess command = Subprocess::Start(
      {.argv = {ProgramPath("client/cli/berth"), absl::StrCat("--folder=", daemon.folder()), "config"},
       .environment = {"BERTH_SESSION"}});
  const std::string text = command.ReadAll();
  EXPECT_EQ(command.Wait(), 0);
  std::map<std::string, std::vector<std::string>> rows;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (!words.empty()) rows[words[0]] = words;
  }
  using Row = std::vector<std::string>;
  EXPECT_EQ(rows["KEY"], (Row{"KEY", "VALUE", "FROM", "CHANGES"}));
  EXPECT_EQ(rows["pools.gpu-tests.cap"], (Row{"pools.gpu-tests.cap", "2", "environment",
                                              "REALIZAR_GPU_TEST_CONCURRENCY=x", "while", "running"}));
  EXPECT_EQ(rows["pools.b.cap"][1], "7");
  EXPECT_EQ(rows["pools.b.cap"][2], "operator");
  EXPECT_EQ(rows["pools.wide.cap"], (Row{"pools.wide.cap", "16", "flag", "--pool", "while", "running"}));
  EXPECT_EQ(rows["memory.warm_limit"],
            (Row{"memory.warm_limit", "64", "MiB", "file", absl::StrCat(daemon.config_path(), ":6"), "with", "a", "new",
                 "daemon"}));
}

TEST(ConfigTest, ReloadChangesMutableKeysAndNamesOthers) {
  TestDaemon daemon({.config = kConfig});
  Actor holder(daemon), waiter(daemon);
  holder.Do("acquire p pool=b units=4");
  waiter.SendLine("acquire p pool=b units=2");
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
  EXPECT_EQ(Must(daemon.inspector().ReloadConfig()).changes_size(), 11)
      << "what waits for a new daemon is named again";
}

TEST(ConfigTest, TenantQuotasHoldAndChangeWhileRunning) {
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
    waiter.SendLine("acquire r pool=b");
    ASSERT_TRUE(Eventually([&] { return Must(daemon.inspector().ListPermits()).waiters_size() == 1; }));
    const uint64_t number = Must(daemon.inspector().ListPermits()).waiters(0).number();
    EXPECT_EQ(Must(daemon.inspector().ExplainWait(number)).cause(), v1::WaitExplanation::TENANT_QUOTA);
    // The tenant's own table has precedence over the general one, and can be removed again.
    const std::string own = absl::StrCat(kConfig, "[tenants]\npermits = 3\n[tenants.", ClientUid(), "]\npermits = 5\n");
    Write(daemon, own);
    std::map<std::string, v1::ReloadConfigResponse::Change> changes;
    const v1::ReloadConfigResponse answer = Must(daemon.inspector().ReloadConfig());
    for (const auto& change : answer.changes()) changes[change.key()] = change;
    const std::string key = absl::StrCat("tenants.", ClientUid(), ".permits");
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
    // A new broker uses the file's content at its start.
    Write(daemon, absl::StrCat(kConfig, "[tenants]\npermits = 9\n"));
    daemon.KillBroker();
    third.Do("acquire s pool=b try");
  }
  daemon.ExpectAccountsBack();
}

TEST(ConfigTest, SessionsAndWatchesAreLimitedByQuota) {
  if (OtherUser().has_value()) GTEST_SKIP() << "this process watches as the user of its actors";
  TestDaemon daemon({.config = "[tenants]\nstreams = 1\nsessions = 4\n"});
  {
    // One session is the operator's, through which the test reads; its watches do not count for the tenant.
    const auto mine = Must(Session::Open({.folder = daemon.folder(), .label = "watcher", .always_new = true}));
    Actor one(daemon), two(daemon);
    // The actor tries again until the time-out.
    Actor fourth(daemon, {.environment = {"BERTH_TEST_PATIENCE=1"}, .open = false});
    const absl::Status refused = fourth.Ask("open").status();
    EXPECT_TRUE(Refused(refused, Reason::kLimit)) << refused;
    Cancellation cancel;
    const Inspector watcher(mine, &cancel);
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
        Inspector(mine).WatchDevices([](const v1::WatchDevicesResponse&) { return true; });
    EXPECT_TRUE(Refused(second, Reason::kLimit, {{"what", "watches of the tenant"}, {"limit", "1"}})) << second;
    cancel.Cancel();
    thread.join();
  }
  daemon.ExpectAccountsBack();
}

TEST(ConfigTest, ManualSettingStaysUnlessFileChanges) {
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

TEST(ConfigTest, ReloadErrorNamesLineAndKeyAndChangesNothing) {
  TestDaemon daemon({.config = kConfig});
  const std::map<std::string, v1::ConfigValue> before = Shown(daemon);
  for (const auto& [text, where] : std::vector<std::pair<std::string, std::string>>{
           {"[pools.gpu-tests]\ncap = 9\n[pools.b]\ncapp = 4\n", ":4: pools.b.capp"},
           {"[pools.b]\ncap = 0\n", ":2: pools.b.cap"},
           {"[pools.b]\ncap = -1\n", ":2: pools.b.cap"},
           {"[pools.b]\ncap = \"x\"\n", ":2: pools.b.cap"},
           {"[pools.b]\ncap = 4\nageing = \"2w\"\n", ":3: pools.b.ageing"},
           {"[memory]\ndevice_budget = \"20Q\"\n", ":2: memory.device_budget"},
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

TEST(ConfigTest, TimesAndAmountsHaveFormsOfCommandLine) {
  TestDaemon daemon({.config = kConfig});
  Write(daemon, "[pools.b]\ncap = 4\nageing = \"1d12h\"\nhold_warning = \"2d\"\nhold_limit = \"90\"\n"
                "idle_warning = \"never\"\n[memory]\ndevice_budget = \"20M\"\nwarm_limit = \"64MiB\"\n");
  Must(daemon.inspector().ReloadConfig());
  std::map<std::string, v1::ConfigValue> shown = Shown(daemon);
  EXPECT_EQ(shown["pools.b.ageing"].value(), "36h");
  EXPECT_EQ(shown["pools.b.hold_warning"].value(), "48h");
  EXPECT_EQ(shown["pools.b.hold_limit"].value(), "1m30s");
  EXPECT_EQ(shown["pools.b.idle_warning"].value(), "never");
  EXPECT_EQ(shown["memory.device_budget"].value(), "20 MiB");
}

// ---- SIGHUP, and the configuration of a new broker -----------------------------------------------------------

std::string TextWithCap(int cap) {
  return absl::StrCat("[pools.gpu-tests]\ncap = 3\n[pools.b]\ncap = ", cap, "\n[memory]\nwarm_limit = \"64MiB\"\n");
}
constexpr char kMistake[] = "[pools.gpu-tests]\ncap = 3\n[pools.b]\ncapp = 9\n";

// Waits for a record of the audit log with all of these.
bool IsAudited(const TestDaemon& daemon, const std::vector<std::string>& texts) {
  return Eventually([&] {
    std::ifstream file(absl::StrCat(daemon.folder(), "/state/audit.jsonl"));
    for (std::string line; std::getline(file, line);) {
      const auto has = [&](const std::string& text) { return absl::StrContains(line, text); };
      if (std::all_of(texts.begin(), texts.end(), has)) return true;
    }
    return false;
  });
}

TEST(ConfigTest, SignalReloadsFile) {
  TestDaemon daemon({.config = kConfig});
  const auto cap_becomes = [&](const std::string& cap) {
    return Eventually([&] { return Shown(daemon)["pools.b.cap"].value() == cap; });
  };
  {
    Actor holder(daemon), waiter(daemon);
    holder.Do("acquire p pool=b units=4");
    waiter.SendLine("acquire p pool=b units=2");
    ASSERT_TRUE(Eventually([&] { return Must(daemon.inspector().ListPermits()).waiters_size() == 1; }));
    Write(daemon, TextWithCap(6));
    daemon.supervisor().Signal(SIGHUP);
    EXPECT_TRUE(Ok(waiter.Answer())) << "a raised cap serves who waits";
    EXPECT_TRUE(cap_becomes("6"));
    EXPECT_TRUE(IsAudited(daemon, {"\"reload\"", "\"done\"", "pools.b.cap: 4 -> 6"}));
    // A mistake changes nothing, and is reported.
    Write(daemon, kMistake);
    daemon.supervisor().Signal(SIGHUP);
    EXPECT_TRUE(IsAudited(daemon, {"\"reload\"", "\"refused\"", ":4: pools.b.capp"}));
    EXPECT_EQ(Shown(daemon)["pools.b.cap"].value(), "6");
    // After many writes the last one is in effect.
    for (int cap = 7; cap <= 30; ++cap) {
      Write(daemon, TextWithCap(cap));
      daemon.supervisor().Signal(SIGHUP);
    }
    EXPECT_TRUE(cap_becomes("30"));
    // SIGHUP to every process of the daemon ends none of them.
    const pid_t broker = daemon.broker();
    const std::vector<pid_t> workers = daemon.workers();
    EXPECT_EQ(::kill(broker, SIGHUP), 0);
    for (const pid_t worker : workers) EXPECT_EQ(::kill(worker, SIGHUP), 0);
    // Any supervisor accepts the signal.
    const pid_t supervisor = daemon.supervisor_pid();
    daemon.KillSupervisor();
    Write(daemon, TextWithCap(5));
    ASSERT_TRUE(Eventually([&] {
      ::kill(daemon.supervisor_pid(), SIGHUP);
      return Shown(daemon)["pools.b.cap"].value() == "5";
    }));
    EXPECT_NE(daemon.supervisor_pid(), supervisor);
    EXPECT_EQ(daemon.broker(), broker);
    EXPECT_EQ(daemon.workers(), workers);
    EXPECT_EQ(Must(daemon.inspector().ListPermits()).permits_size(), 2);
  }
  daemon.ExpectAccountsBack();
}

// As an editor leaves a file for a moment, and a crash or a mistake for ever.
TEST(ConfigTest, IncompleteFileChangesNothing) {
  TestDaemon daemon({.config = absl::StrCat(kConfig, "[tenants]\npermits = 7\n")});
  const std::string path = daemon.config_path();
  const auto as_before = [&] {
    std::map<std::string, v1::ConfigValue> shown = Shown(daemon);
    return shown["pools.b.cap"].value() == "4" && shown["pools.gpu-tests.cap"].value() == "3" &&
           shown["tenants.permits"].value() == "7";
  };
  ASSERT_TRUE(as_before());
  const struct {
    const char* name;
    std::function<void()> make;
    const char* error;
  } cases[] = {
      {"empty", [&] { Write(daemon, ""); }, "has no settings"},
      {"blank", [&] { Write(daemon, "\n  \n"); }, "has no settings"},
      {"comments", [&] { Write(daemon, "# [pools.b]\n# cap = 4\n"); }, "has no settings"},
      {"a byte order mark", [&] { Write(daemon, "\xef\xbb\xbf"); }, "has no settings"},
      {"cut after a header", [&] { Write(daemon, "[tenants]\n"); }, "has no settings"},
      {"cut after headers", [&] { Write(daemon, "[pools]\n[tenants.0]\n[limits]\n"); }, "has no settings"},
      {"cut in a line", [&] { Write(daemon, "[pools.gpu-tests]\ncap = 3\n[pools.b"); }, "expected"},
      {"NULs after a crash", [&] { Write(daemon, std::string(4096, '\0')); }, ""},
      {"a folder", [&] { ::mkdir(path.c_str(), 0700); }, "is not a regular file"},
      {"a FIFO", [&] { ::mkfifo(path.c_str(), 0600); }, "is not a regular file"},
      {"a socket", [&] { ::mknod(path.c_str(), S_IFSOCK | 0600, 0); }, "is not a regular file"},
      {"endless", [&] { ASSERT_EQ(::symlink("/dev/zero", path.c_str()), 0); }, "is not a regular file"},
      {"endless without a size", [&] { ASSERT_EQ(::symlink("/proc/self/pagemap", path.c_str()), 0); },
       "the limit is 4 MiB"},
      {"a long key", [&] { Write(daemon, absl::StrCat("[pools.", std::string(100'000, 'p'), "]\ncap = 1\n")); },
       "expected a readable file without a mistake"},
      {"huge", [&] { Write(daemon, std::string(5 << 20, '\n')); }, "the limit is 4 MiB"},
      {"sparse",
       [&] {
         Write(daemon, TextWithCap(9));
         std::filesystem::resize_file(path, 1ULL << 32);
       },
       "the limit is 4 MiB"},
      {"NULs before settings", [&] { Write(daemon, absl::StrCat(std::string(512, '\0'), TextWithCap(9))); }, ":1: "},
      {"missing", [] {}, "No such file"}};
  for (const auto& [name, make, error] : cases) {
    SCOPED_TRACE(name);
    std::filesystem::remove(path);
    make();
    const absl::Status reloaded = daemon.inspector().ReloadConfig().status();
    EXPECT_TRUE(Refused(reloaded, Reason::kInvalidField));
    EXPECT_TRUE(absl::StrContains(reloaded.message(), error)) << reloaded;
    EXPECT_TRUE(as_before());
  }
  for (const size_t each : {0, 4, 8}) {
    SCOPED_TRACE(cases[each].name);
    std::filesystem::remove(path);
    cases[each].make();
    daemon.KillBroker();
    EXPECT_TRUE(as_before());
  }
}

// The writer rewrites the file in place, in pieces, for longer than the daemon waits at a start.
TEST(ConfigTest, FileThatStillChangesIsReadOnceComplete) {
  const auto pieces = [](int number) {
    return std::vector<std::string>{"[pools.gpu-tests]\ncap = 3\n", absl::StrCat("[pools.b]\ncap = ", number, "\n"),
                                    absl::StrCat("[tenants]\npermits = ", number, "\n")};
  };
  TestDaemon daemon({.config = absl::StrJoin(pieces(1), "")});
  const auto both = [&] {
    std::map<std::string, v1::ConfigValue> shown = Shown(daemon);
    return std::pair(shown["pools.b.cap"].value(), shown["tenants.permits"].value());
  };
  int last = 1;
  // Whether this machine let the writer pause for so long that the file seemed complete.
  bool paused = false;
  std::vector<std::pair<std::string, std::string>> seen;
  {
    std::jthread writer([&](std::stop_token stop) {
      absl::Time before = absl::Now();
      while (!stop.stop_requested()) {
        ++last;
        std::ofstream file(daemon.config_path());
        for (const std::string& piece : pieces(last)) {
          file << piece << std::flush;
          ::poll(nullptr, 0, 2);
          const absl::Time now = absl::Now();
          paused = paused || now - std::exchange(before, now) > absl::Milliseconds(20);
        }
      }
    });
    daemon.supervisor().Signal(SIGHUP);
    seen.push_back(both());
    // The next broker uses what the earlier one has read, and reloads by itself.
    daemon.KillBroker();
    for (int looks = 0; looks < 10; ++looks) {
      daemon.supervisor().Signal(SIGHUP);
      daemon.GetNode();
      seen.push_back(both());
    }
  }
  if (paused) daemon.supervisor().Signal(SIGHUP);
  const std::pair end(absl::StrCat(last), absl::StrCat(last));
  EXPECT_TRUE(Eventually([&] { return both() == end; })) << both().first << " and " << both().second;
  for (const auto& [cap, permits] : seen) EXPECT_TRUE(paused || cap == permits) << cap << " and " << permits;
}

TEST(ConfigTest, FollowingBrokerLogsChangedSettings) {
  const std::string log = ::testing::TempDir() + "/changed_settings.log";
  std::filesystem::remove(log);
  TestDaemon daemon({.config = kConfig, .errors = log});
  Write(daemon, TextWithCap(6));
  daemon.KillBroker();
  EXPECT_EQ(Shown(daemon)["pools.b.cap"].value(), "6");
  std::ifstream file(log);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  EXPECT_TRUE(absl::StrContains(text, "configuration: pools.b.cap: 4 -> 6")) << text;
}

TEST(ConfigTest, InvalidFileEndsNoLeaseAcrossDeaths) {
  TestDaemon daemon({.config = kConfig});
  {
    Actor holder(daemon);
    holder.Do("acquire p pool=b units=4");
    const auto as_before = [&](const std::string& cap) {
      const v1::ConfigValue shown = Shown(daemon)["pools.b.cap"];
      EXPECT_EQ(shown.value(), cap);
      EXPECT_EQ(shown.where(), absl::StrCat(daemon.config_path(), " before the mistake in it:4"));
      EXPECT_EQ(Must(daemon.inspector().ListPermits()).permits_size(), 1);
    };
    Write(daemon, kMistake);
    for (int life = 0; life < 6; ++life) {
      daemon.KillBroker();
      // A broker that ends before it serves is another case.
      daemon.GetNode();
    }
    as_before("4");
    EXPECT_TRUE(IsAudited(daemon, {"\"keep_config\"", ":4: pools.b.capp"}));
    EXPECT_TRUE(Refused(daemon.inspector().ReloadConfig(), Reason::kInvalidField));
    daemon.KillSupervisor();
    daemon.KillBroker();
    as_before("4");
    // A new broker uses what a reload has read, too. A missing file has the same effect as a file with a mistake.
    Write(daemon, TextWithCap(6));
    Must(daemon.inspector().ReloadConfig());
    EXPECT_EQ(Shown(daemon)["pools.b.cap"].where(), absl::StrCat(daemon.config_path(), ":4"));
    ASSERT_EQ(::unlink(daemon.config_path().c_str()), 0);
    daemon.KillBroker();
    as_before("6");
    Write(daemon, TextWithCap(5));
    daemon.KillBroker();
    EXPECT_EQ(Shown(daemon)["pools.b.cap"].value(), "5") << "a file without a mistake is read as it is";
    EXPECT_EQ(Shown(daemon)["pools.b.cap"].where(), absl::StrCat(daemon.config_path(), ":4"));
    EXPECT_TRUE(Ok(holder.Ask("release p")));
  }
  daemon.ExpectAccountsBack();
}

TEST(ConfigTest, MistakeAtStartIsLoggedOnceAsOneLine) {
  std::string parent = "/tmp/berth-config-XXXXXX";
  ASSERT_NE(::mkdtemp(parent.data()), nullptr);
  // A name that would end the line, and colour the terminal.
  const std::string folder = parent + "/a\nb\x1b[31m";
  std::filesystem::create_directory(folder);
  const std::string shown = parent + "/a\\u{a}b\\u{1b}[31m";
  const struct {
    const char* name;
    // Null: there is no such file.
    const char* text;
    const char* mistake;
  } rows[] = {
      {"key", "bogus = 1\n", "/key:1: bogus: unknown key"},
      {"value", "[pools.gpu-tests]\ncap = \"many\"\n", "/value:2: pools.gpu-tests.cap"},
      {"syntax", "[pools\n", "/syntax:"},
      {"missing", nullptr, "/missing: No such file"},
      {"log", "[log]\nfile = \"FOLDER/nowhere/log\"\n", "/nowhere/log: No such file"},
  };
  for (const auto& row : rows) {
    const std::string path = absl::StrCat(folder, "/", row.name);
    if (row.text != nullptr) {
      std::ofstream(path) << absl::StrReplaceAll(row.text, {{"FOLDER", parent + "/a\\nb\\u001b[31m"}});
    }
    Subprocess daemon = Subprocess::Start(
        {.argv = {"/bin/sh", "-c", "exec \"$@\" 2>&1", "sh", ProgramPath("daemon/berthd"), "--backend=host",
                  absl::StrCat("--folder=", parent, "/run"), absl::StrCat("--config=", path)}});
    const std::string said = daemon.ReadAll();
    EXPECT_EQ(daemon.Wait(), 1) << row.name;
    int reports = 0;
    for (const absl::string_view line : absl::StrSplit(said, '\n', absl::SkipEmpty())) {
      EXPECT_TRUE(absl::StrContains(line, "berthd")) << row.name << ": " << line;
      reports += absl::StrContains(line, absl::StrCat(shown, row.mistake)) ? 1 : 0;
    }
    EXPECT_EQ(reports, 1) << row.name << ": " << said;
    EXPECT_FALSE(absl::StrContains(said, "\x1b")) << row.name;
  }
  std::filesystem::remove_all(parent);
}

}  // namespace
}  // namespace berth::testing
