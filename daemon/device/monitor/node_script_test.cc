#include "daemon/device/monitor/node_script.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace berth {
namespace {

absl::StatusOr<NodeScript> Read(const std::string& text) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/node-", ::getpid(), ".toml");
  std::ofstream(path) << text;
  absl::StatusOr<NodeScript> script = ReadNodeScript(path);
  ::unlink(path.c_str());
  return script;
}

TEST(NodeScriptTest, ScriptDescribesDevicesAndTheirEvents) {
  const absl::StatusOr<NodeScript> script = Read(R"(
    refresh = "20ms"
    [[device]]
    count = 2
    uuid = "GPU-a"
    name = "NVIDIA H200"
    capability = "9.0"
    multiprocessors = 132
    threads_per_multiprocessor = 2048
    shared_bytes_per_block = 49152
    l2_bytes = 62914560
    memory = "64MiB"
    island = 3
    temperature = 41
    power = "not supported"
    [[device]]
    ecc_mode = "not permitted"
    [now.1]
    lost = true
    temperature = 95
    free_bytes = "10MiB"
    xids = [13, 79]
    fails_self_test = "bad memory"
    processes = [{pid = 7, bytes = "1MiB"}]
    [now.2]
    hangs = true
  )");
  ASSERT_TRUE(script.ok()) << script.status();
  EXPECT_EQ(script->refresh, absl::Milliseconds(20));
  ASSERT_EQ(script->devices.size(), 3u);
  const ScriptedDevice &first = script->devices[0], &second = script->devices[1], &third = script->devices[2];
  EXPECT_EQ(first.uuid, "GPU-a-0");
  EXPECT_EQ(first.name, "NVIDIA H200");
  EXPECT_EQ(first.compute_capability, 90u);
  EXPECT_EQ(first.multiprocessors, 132u);
  EXPECT_EQ(first.memory, MiB(64));
  EXPECT_EQ(first.metrics[DeviceMetric::kTemperature], Known(41));
  EXPECT_EQ(first.metrics[DeviceMetric::kPower], Absent(MetricAbsence::kNotSupported));
  EXPECT_FALSE(first.metrics[DeviceMetric::kFreeBytes].known());
  EXPECT_EQ(script->NvlinkPeersOf(0), 2u);
  EXPECT_EQ(script->NvlinkPeersOf(2), 0u);
  EXPECT_TRUE(second.lost);
  EXPECT_EQ(second.metrics[DeviceMetric::kTemperature], Known(95));
  EXPECT_EQ(second.metrics[DeviceMetric::kFreeBytes], Known(MiB(10).count()));
  EXPECT_EQ(second.xids, (std::vector<uint64_t>{13, 79}));
  EXPECT_EQ(second.fails_self_test, "bad memory");
  ASSERT_EQ(second.processes.size(), 1u);
  EXPECT_EQ(second.processes[0].bytes, MiB(1));
  EXPECT_EQ(third.uuid, "SIM-2");
  EXPECT_TRUE(third.hangs);
  EXPECT_EQ(third.metrics[DeviceMetric::kEccMode], Absent(MetricAbsence::kNotPermitted));
}

TEST(NodeScriptTest, SlicesAreSeparateDevices) {
  const absl::StatusOr<NodeScript> script = Read(
      "[[device]]\ncount = 8\nslices = 7\nuuid = \"GPU\"\nmultiprocessors = 132\nmemory = \"70MiB\"\n"
      "island = 0\n");
  ASSERT_TRUE(script.ok()) << script.status();
  ASSERT_EQ(script->devices.size(), 56u);
  std::set<std::string> uuids, parents;
  for (uint32_t i = 0; i < 56; ++i) {
    uuids.insert(script->devices[i].uuid);
    parents.insert(script->devices[i].mig_parent);
    EXPECT_EQ(script->devices[i].multiprocessors, 18u);
    EXPECT_EQ(script->devices[i].memory, MiB(10));
    EXPECT_EQ(script->NvlinkPeersOf(i), 0u);
  }
  EXPECT_EQ(uuids.size(), 56u);
  EXPECT_EQ(parents.size(), 8u);
}

TEST(NodeScriptTest, ErrorNamesLineAndKey) {
  for (const auto& [text, key] : std::vector<std::pair<std::string, std::string>>{
           {"", "device"},
           {"devices = 3", ":1: devices"},
           {"device = 3", ":1: device"},
           {"[[device]]\ncount = 0", ":2: count"},
           {"[[device]]\ncount = 65", ":2: count"},
           {"[[device]]\ncount = 33\n[[device]]\ncount = 32", "at most 64"},
           {"[[device]]\ncount = 10\nslices = 7", "at most 64"},
           {"[[device]]\ncapability = \"9\"", ":2: capability"},
           {"[[device]]\nmemory = 3", ":2: memory"},
           {"[[device]]\ncolour = 3", ":2: device.colour"},
           {"[[device]]\ntemperature = \"hot\"", ":2: temperature"},
           {"[[device]]\nlost = 1", ":2: lost"},
           {"[[device]]\n[now.1]\nlost = true", ":2: now.1"},
           {"[[device]]\n[now.0]\nname = \"x\"", ":3: now.0.name"},
           {"[[device]]\n[now.0]\nxids = 3", ":3: xids"},
           {"[[device]]\n[now.0]\nprocesses = [{pid = 1}]", ":3: processes"},
           {"refresh = \"soon\"\n[[device]]", ":1: refresh"},
           {"[[device]\n", "node-"}}) {
    const absl::Status status = Read(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
    EXPECT_TRUE(absl::StrContains(status.message(), key)) << status << " for " << text;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(ReadNodeScript("/nowhere.toml").status()));
}

}  // namespace
}  // namespace berth
