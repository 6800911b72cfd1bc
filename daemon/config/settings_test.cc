#include "daemon/config/settings.h"

#include <stdlib.h>

#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/concurrency_limit.h"
#include "daemon/broker/history_writer.h"
#include "daemon/server/memory_watch.h"
#include "daemon/service/limits/accept_gate.h"
#include "daemon/service/transport/connection_table.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

class SettingsTest : public testing::Test {
 protected:
  void SetUp() override {
    unsetenv(kConcurrencyVariable);
    unsetenv(kConcurrencyAlias);
  }
  absl::StatusOr<Settings> Read(const std::string& text) {
    path_ = absl::StrCat(testing::TempDir(), "/berthd.toml");
    std::ofstream(path_) << text;
    return ReadSettings(path_);
  }
  uint64_t CapOfGpuTests(const Settings& settings) {
    const core::Config config = BuildConfig(1, 1, {}, settings);
    for (const core::PoolConfig& pool : config.pools) {
      if (pool.name == kDefaultPool) return pool.cap;
    }
    return 0;
  }
  std::string path_;
};

TEST_F(SettingsTest, CompleteFileIsRead) {
  const absl::StatusOr<Settings> settings = Read(R"(
    [pools.gpu-tests]
    cap = 4
    [pools.bench]
    cap = 1
    tenant_cap = 3
    ageing = "90s"
    hold_warning = "1s"
    hold_limit = "1h"
    weights = {1000 = 3, 1001 = 1000}
    device_cap = 2
    no_device_cap = 3
    device_caps = {GPU-1 = 0}
    [memory]
    device_budget = "100GiB"
    warm_blocks = 0
    warm_limit = "64MiB"
    permit_reserve = "1GiB"
    context = "500MiB"
    [workers]
    call_deadline = "1m"
    call_deadline_per_gib = "0s"
    [log]
    file = "/var/log/memory.jsonl"
    fences = true
    [history]
    size = "16MiB"
    rows = 2000
    [modules]
    total = "10MiB"
    tenant = "3MiB"
    compile_patience = "5s"
    [limits]
    connections = 100
    connections_per_uid = 50
    attach_fds_per_uid = 30
    imports_per_process = 7
    streams_per_device = 3
  )");
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->core.pools.size(), 2u);
  EXPECT_EQ(CapOfGpuTests(*settings), 4u);
  const core::PoolConfig& bench = settings->core.pools[0];
  EXPECT_EQ(bench.name, "bench");
  EXPECT_EQ(bench.tenant_cap, 3u);
  EXPECT_EQ(bench.device_cap, 2u);
  EXPECT_EQ(bench.no_device_cap, 3u);
  EXPECT_EQ(bench.device_caps, (std::map<std::string, uint64_t>{{"GPU-1", 0}}));
  EXPECT_EQ(bench.ageing, absl::Seconds(90));
  EXPECT_EQ(bench.hold_warning, absl::Seconds(1));
  EXPECT_EQ(bench.hold_limit, absl::Hours(1));
  EXPECT_EQ(bench.weights, (std::map<uint32_t, uint32_t>{{1000, 3}, {1001, 1000}}));
  EXPECT_EQ(settings->device_budget, GiB(100));
  EXPECT_EQ(settings->core.warm_blocks_per_size, 0u);
  EXPECT_EQ(settings->core.warm_limit, MiB(64));
  EXPECT_EQ(settings->core.calls.base, absl::Minutes(1));
  EXPECT_EQ(settings->core.calls.per_gib, absl::ZeroDuration());
  const core::Config config = BuildConfig(1, 1, {}, *settings);
  EXPECT_EQ(config.calls.base, absl::Minutes(1));
  EXPECT_EQ(config.calls.per_gib, absl::ZeroDuration());
  EXPECT_EQ(settings->log_file, "/var/log/memory.jsonl");
  EXPECT_EQ(settings->core.log_fences, true);
  EXPECT_EQ(settings->history_size, MiB(16));
  EXPECT_EQ(settings->history_rows, 2000u);
  EXPECT_EQ(settings->connections.total, 100u);
  EXPECT_EQ(settings->connections.per_uid, 50u);
  EXPECT_EQ(settings->attach.fds_per_uid, 30u);
  EXPECT_EQ(config.limits.imports_per_channel, 7u);
  EXPECT_EQ(config.limits.fences.streams_per_device, 3u);
  EXPECT_EQ(config.limits.modules.total, MiB(10));
  EXPECT_EQ(config.limits.modules.tenant, MiB(3));
  EXPECT_EQ(config.limits.modules.compile_patience, absl::Seconds(5));
}

TEST_F(SettingsTest, SampleFileEqualsDefaults) {
  const absl::StatusOr<Settings> sample = ReadSettings("deploy/berthd.toml");
  ASSERT_TRUE(sample.ok()) << sample.status();
  Settings all;
  for (const Setting& setting : AllSettings(&all)) {
    const bool may_be_unset = std::holds_alternative<std::optional<Bytes>*>(setting.value) ||
                              std::holds_alternative<std::optional<std::string>*>(setting.value) ||
                              setting.key == "memory.permit_reserve";
    EXPECT_TRUE(may_be_unset || sample->origins.contains(setting.key)) << setting.key;
  }
  EXPECT_EQ(CapOfGpuTests(*sample), CapOfGpuTests({}));
  EXPECT_EQ(sample->core.pools[0].ageing, core::PoolConfig().ageing);
  EXPECT_EQ(sample->core.pools[0].hold_limit, core::PoolConfig().hold_limit);
  const core::Config defaults;
  EXPECT_EQ(sample->core.warm_blocks_per_size, defaults.warm_blocks_per_size);
  EXPECT_EQ(sample->core.warm_limit, defaults.warm_limit);
  EXPECT_EQ(sample->core.calls.base, defaults.calls.base);
  EXPECT_EQ(sample->core.calls.per_gib, defaults.calls.per_gib);
  EXPECT_EQ(sample->connections.total, 6144u);
  EXPECT_EQ(sample->connections.calls.per_second, service::ConnectionLimits().calls.per_second);
  EXPECT_EQ(sample->connections.calls_per_uid.per_second, service::ConnectionLimits().calls_per_uid.per_second);
  EXPECT_EQ(sample->connections.resets.per_second, service::ConnectionLimits().resets.per_second);
  EXPECT_EQ(sample->connections.resets_per_uid.per_second, service::ConnectionLimits().resets_per_uid.per_second);
  EXPECT_EQ(sample->attach.accepts.total.per_second, service::AcceptRates().total.per_second);
  EXPECT_EQ(sample->attach.accepts.per_uid.per_second, service::AcceptRates().per_uid.per_second);
  EXPECT_EQ(sample->broker_memory, kBrokerMemory);
  EXPECT_EQ(sample->core.limits.imports_per_channel, defaults.limits.imports_per_channel);
  EXPECT_EQ(sample->core.limits.fences.streams_per_device, defaults.limits.fences.streams_per_device);
  EXPECT_EQ(sample->core.limits.modules.total, defaults.limits.modules.total);
  EXPECT_EQ(sample->core.limits.modules.tenant, defaults.limits.modules.tenant);
  EXPECT_EQ(sample->core.limits.modules.compile_patience, defaults.limits.modules.compile_patience);
  EXPECT_EQ(sample->history_size, HistoryWriter::kSize);
  EXPECT_EQ(sample->history_rows, HistoryWriter::kRows);
}

TEST_F(SettingsTest, NumberOfPoolsIsLimited) {
  std::string text;
  for (int i = 0; i < 1'000; ++i) absl::StrAppend(&text, "[pools.p", i, "]\ncap = 1\n");
  EXPECT_TRUE(Read(text).ok());
  const absl::Status status = Read(text + "[pools.q]\ncap = 1\n").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_NE(status.message().find(": pools: expected at most 1000 pools, not 1001"), absl::string_view::npos) << status;
}

// The same forms as on the command line.
TEST_F(SettingsTest, TimesAndAmountsAreReadAsOnCommandLine) {
  const struct {
    const char* text;
    absl::Duration time;
  } times[] = {{"90", absl::Seconds(90)},      {"2d", absl::Hours(48)},     {"1d12h", absl::Hours(36)},
               {"1h30m", absl::Minutes(90)},   {"0.5d", absl::Hours(12)},   {"1500ms", absl::Milliseconds(1500)},
               {"never", absl::InfiniteDuration()}};
  for (const auto& [text, time] : times) {
    const absl::StatusOr<Settings> settings =
        Read(absl::StrCat("[pools.x]\ncap = 1\nhold_limit = \"", text, "\"\nidle_warning = \"", text, "\"\n"));
    ASSERT_TRUE(settings.ok()) << settings.status();
    EXPECT_EQ(settings->core.pools[0].hold_limit, time) << text;
    EXPECT_EQ(settings->core.pools[0].idle_warning, time) << text;
  }
  const struct {
    const char* text;
    Bytes bytes;
  } amounts[] = {{"20G", GiB(20)}, {"10GB", Bytes(10'000'000'000)}, {"4096", Bytes(4096)}, {"1.5gib", MiB(1536)}};
  for (const auto& [text, bytes] : amounts) {
    const absl::StatusOr<Settings> settings = Read(absl::StrCat("[memory]\ndevice_budget = \"", text, "\"\n"));
    ASSERT_TRUE(settings.ok()) << settings.status();
    EXPECT_EQ(settings->device_budget, bytes) << text;
  }
  const struct {
    const char* text;
    const char* says;
  } wrong[] = {
      {"[memory]\ndevice_budget = \"20Q\"", ":2: memory.device_budget: expected an amount such as \"4096\", \"64K"},
      {"[memory]\ndevice_budget = \"20Q\"", "\"10GB\" (10^9 each), not \"20Q\""},
      {"[memory]\ndevice_budget = 20", "(10^9 each), not 20"},
      {"[workers]\ncall_deadline = \"never\"", "\"1h30m\" or \"2d\", not \"never\""},
      {"[pools.x]\ncap = 1\nhold_limit = \"soon\"", "\"2d\", or \"never\", not \"soon\""},
      {"[pools.x]\ncap = 1\nageing = 90", ":3: pools.x.ageing: expected a time of at least 0, such as \"90\" (sec"},
      {"[pools.x]\ncap = 0", ":2: pools.x.cap: expected a whole number from 1 to 9223372036854775807, not 0"}};
  for (const auto& [text, says] : wrong) {
    const absl::Status status = Read(text).status();
    EXPECT_TRUE(absl::StrContains(status.message(), says)) << status;
  }
}

TEST_F(SettingsTest, ErrorNamesFileAndKey) {
  for (const auto& [text, key] : std::vector<std::pair<std::string, std::string>>{
           {"[pools.x]\ncap = 0", "pools.x.cap"},
           {"[pools.\"\"]\ncap = 1", "a printable name of 1 to 128 bytes"},
           {"[history]\nsize = \"1MiB\"", ":2: history.size"},
           {"[history]\nrows = 999", ":2: history.rows"},
           {"[history]\nbytes = 1", "history.bytes"},
           {"[pools.x]\ncap = \"2\"", "pools.x.cap"},
           {"[pools.x]\n", "pools.x.cap"},
           {"[pools.x]\ncap = 1\ncapp = 1", "pools.x.capp: unknown key; expected one of ageing, cap"},
           {"[pools.x]\ncap = 1\ntenant_cap = 0", "pools.x.tenant_cap"},
           {"[pools.x]\ncap = 1\ndevice_cap = 0", ":3: pools.x.device_cap"},
           {"[pools.x]\ncap = 1\ndevice_caps = 3", ":3: pools.x.device_caps"},
           {"[pools.x]\ncap = 1\ndevice_caps = {GPU-1 = -1}", "pools.x.device_caps.GPU-1"},
           {"[pools.x]\ncap = 1\nageing = \"-1s\"", "pools.x.ageing"},
           {"[pools.x]\ncap = 1\nhold_limit = \"999ms\"", "pools.x.hold_limit"},
           {"[pools.x]\ncap = 1\nweights = 3", ":3: pools.x.weights"},
           {"[pools.x]\ncap = 1\nweights = {root = 3}", "pools.x.weights.root"},
           {"[pools.x]\ncap = 1\nweights = {1000 = 0}", "pools.x.weights.1000"},
           {"[pools.x]\ncap = 1\nweights = {1000 = 1001}", "pools.x.weights.1000"},
           {"pools = 3", "pools"},
           {"[memory]\ndevice_budget = \"lots\"", "memory.device_budget"},
           {"[memory]\nwarm_blocks = -1", "memory.warm_blocks"},
           {"[workers]\ncall_deadline = \"soon\"", "workers.call_deadline"},
           {"[workers]\ncall_deadline = \"499ms\"", "workers.call_deadline"},
           {"[workers]\ncall_deadline = 10", "workers.call_deadline"},
           {"[workers]\ncall_deadline_per_gib = \"-1s\"", "workers.call_deadline_per_gib"},
           {"[workers]\ncall_deadline_per_gib = \"inf\"", "workers.call_deadline_per_gib"},
           {"[log]\nfile = \"memory.jsonl\"", "log.file"},
           {"[limits]\nconnections = 5000000000", "limits.connections"},
           {"[limits]\nattach_fds_per_uid = 0", "limits.attach_fds_per_uid"},
           {"[limits]\ncalls_per_second = 0", "limits.calls_per_second"},
           {"[limits]\nresets_per_second = -1", "limits.resets_per_second"},
           {"[limits]\naccepts_per_second_per_uid = \"many\"", "limits.accepts_per_second_per_uid"},
           {"[limits]\nbroker_memory = 7", "limits.broker_memory"},
           {"[limits]\nstreams_per_device = 0", "limits.streams_per_device"},
           {"[modules]\ntotal = \"-1\"", "modules.total"},
           {"[modules]\ncompile_patience = \"1ms\"", "modules.compile_patience"},
           {"[modules]\nlargest = \"1MiB\"", "modules.largest"},
           {"[surprise]", "surprise"},
           {"[pools", ":1"}}) {
    const absl::StatusOr<Settings> settings = Read(text);
    EXPECT_EQ(settings.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_NE(settings.status().message().find(path_), absl::string_view::npos) << settings.status();
    EXPECT_NE(settings.status().message().find(key), absl::string_view::npos) << settings.status();
  }
}

TEST_F(SettingsTest, DefaultGpuTestsCapIsDeviceCountAtLeastTwo) {
  const struct {
    size_t devices;
    const char* environment;
    uint64_t of_file;
    uint64_t cap;
    uint64_t no_device_cap;
  } rows[] = {
      {0, nullptr, 0, 2, 0}, {1, nullptr, 0, 2, 0}, {2, nullptr, 0, 2, 0}, {3, nullptr, 0, 3, 2},
      {8, nullptr, 0, 8, 2}, {8, "4", 0, 4, 0},     {8, nullptr, 5, 5, 0}, {8, "4", 5, 4, 0},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(absl::StrCat(row.devices, " devices, file ", row.of_file));
    Settings settings;
    // A pool's table without a cap counts as no table.
    settings.core.pools = {{.name = kDefaultPool, .cap = 0}};
    if (row.of_file != 0) settings.core.pools = {{.name = kDefaultPool, .cap = row.of_file}};
    if (row.environment != nullptr) setenv(kConcurrencyVariable, row.environment, 1);
    const core::Config config = BuildConfig(1, 1, std::vector<DeviceRecord>(row.devices), settings);
    unsetenv(kConcurrencyVariable);
    ASSERT_EQ(config.pools.size(), 1u);
    EXPECT_EQ(config.pools[0].cap, row.cap);
    EXPECT_EQ(config.pools[0].no_device_cap, row.no_device_cap);
  }
}

TEST_F(SettingsTest, EnvironmentPrecedesFileAndFileDefault) {
  EXPECT_EQ(CapOfGpuTests({}), 2u);
  const Settings file = {.core = {.pools = {{.name = "gpu-tests", .cap = 5}}}};
  EXPECT_EQ(CapOfGpuTests(file), 5u);
  setenv(kConcurrencyAlias, "7", 1);
  EXPECT_EQ(CapOfGpuTests(file), 7u);
  setenv(kConcurrencyVariable, " 3 ", 1);
  EXPECT_EQ(CapOfGpuTests(file), 3u);
  setenv(kConcurrencyVariable, "-1", 1);
  EXPECT_EQ(CapOfGpuTests(file), 2u);
  setenv(kConcurrencyVariable, "0", 1);
  EXPECT_EQ(CapOfGpuTests(file), 1u);
}

TEST_F(SettingsTest, DeclarableBytesExcludeReserveContextAndOthers) {
  const DeviceRecord host = {
      .total_bytes = GiB(16).count(), .free_bytes = GiB(15).count(), .granularity = MiB(2).count()};
  DeviceRecord cuda = host;
  cuda.backend = BackendKind::kCudaVmm;
  const core::Config config = BuildConfig(1, 1, {host, cuda}, {});
  EXPECT_EQ(config.devices[0].others, GiB(1));
  EXPECT_EQ(config.devices[0].context, Bytes());
  EXPECT_GE(config.devices[1].context, MiB(582));
  cuda.context_mib = 523;
  EXPECT_EQ(BuildConfig(1, 1, {cuda}, {}).devices[0].context, MiB(523));
  const core::Config set = BuildConfig(1, 1, {cuda}, {.permit_reserve = GiB(1), .context = MiB(500)});
  EXPECT_EQ(set.devices[0].permit_reserve, GiB(1));
  EXPECT_EQ(set.devices[0].context, MiB(500));
}

TEST_F(SettingsTest, BudgetIsLesserOfFreeAndHalfUnlessSet) {
  DeviceRecord record = {
      .total_bytes = GiB(16).count(), .free_bytes = GiB(15).count(), .granularity = MiB(2).count()};
  EXPECT_EQ(BuildConfig(1, 1, {record}, {}).devices[0].budget, GiB(8));
  record.free_bytes = GiB(3).count();
  EXPECT_EQ(BuildConfig(1, 1, {record}, {}).devices[0].budget, GiB(3));
  EXPECT_EQ(BuildConfig(1, 1, {record}, {.device_budget = GiB(12)}).devices[0].budget, GiB(12));
}

TEST_F(SettingsTest, DeviceCapsAreResolvedToUuids) {
  std::vector<DeviceRecord> devices(2);
  for (uint32_t ordinal = 0; ordinal < 2; ++ordinal) {
    devices[ordinal].ordinal = ordinal;
    absl::SNPrintF(devices[ordinal].uuid, sizeof(devices[ordinal].uuid), "GPU-%d", ordinal);
  }
  const std::string absent = "GPU-12345678-9abc-def0-1234-56789abcdef0";
  const absl::StatusOr<Settings> settings =
      Read(absl::StrCat("[pools.x]\ncap = 1\ndevice_caps = {1 = 3, ", absent, " = 4}"));
  ASSERT_TRUE(settings.ok()) << settings.status();
  std::vector<std::string> texts;
  EXPECT_EQ(CheckDeviceCaps(*settings, devices, &texts), absl::OkStatus());
  ASSERT_EQ(texts.size(), 1u);
  const std::string where = absl::StrCat(path_, ":3: pools.x.device_caps: ");
  EXPECT_TRUE(absl::StartsWith(texts[0], absl::StrCat(where, "no device ", absent, ": "))) << texts[0];
  EXPECT_EQ(BuildConfig(1, 1, devices, *settings).pools[1].device_caps,
            (std::map<std::string, uint64_t>{{"GPU-1", 3}, {absent, 4}}));
  const absl::Status mistake = CheckDeviceCaps(*Read("[pools.x]\ncap = 1\ndevice_caps = {2 = 3}"), devices, &texts);
  EXPECT_TRUE(absl::StartsWith(mistake.message(), absl::StrCat(where, "no device 2: "))) << mistake;
}

TEST_F(SettingsTest, MemoryScrubCheckIsPassedOn) {
  const DeviceRecord record = {.granularity = MiB(2).count(),
                               .scrub = {.outcome = ScrubOutcome::kClear, .detail = "found no stale word in 1 GiB"}};
  const core::MemoryScrubCheck scrub = BuildConfig(1, 1, {record}, {}).devices[0].scrub;
  EXPECT_EQ(scrub.outcome, core::MemoryScrubCheck::Outcome::kClear);
  EXPECT_EQ(scrub.detail, "found no stale word in 1 GiB");
}

}  // namespace
}  // namespace berth
