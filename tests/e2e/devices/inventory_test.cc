// Inventory and health of devices, across processes: simulated nodes, hanging drivers, devices that are lost and
// return, drained devices, and devices that the daemon picks.

#include <signal.h>
#include <stdlib.h>
#include <sys/types.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <set>
#include <string>
#include <vector>

#include <berth/block.h>
#include <berth/bytes.h>
#include <berth/error.h>
#include <berth/permit.h>
#include <berth/session.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "berth/v1/device.grpc.pb.h"
#include "berth/v1/inventory.pb.h"
#include "berth/v1/memory.pb.h"
#include "berth/v1/permit.pb.h"
#include "berth/v1/resources.pb.h"
#include "client/sdk/admin/inspector.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/berth_command.h"
#include "tests/support/daemon/node_file.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/proc.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

constexpr char kTwo[] = "[[device]]\ncount = 2\nuuid = \"GPU\"\nmemory = \"64MiB\"\n";

TestDaemonOptions With(const NodeFile& node, const std::string& call_deadline = "10s") {
  return {.flags = {node.flag(), absl::StrCat("--call-deadline=", call_deadline)}};
}

v1::DeviceInventory Look(TestDaemon& daemon, int device) {
  return Must(daemon.inspector().ListInventory(), "inventory").devices(device);
}

v1::Device DeviceOf(TestDaemon& daemon, int device) {
  return Must(daemon.inspector().ListDevices(), "devices").devices(device);
}

bool Becomes(TestDaemon& daemon, int device, v1::Device::State state) {
  return Eventually([&] { return DeviceOf(daemon, device).state() == state; });
}

pid_t MonitorOf(TestDaemon& daemon) {
  for (const ChildInfo& child : ChildrenOf(daemon.supervisor().pid())) {
    if (child.name == "berth-monitor") return child.pid;
  }
  return 0;
}

std::shared_ptr<Session> OpenSession(TestDaemon& daemon) {
  return Must(Session::Open({.folder = daemon.folder(), .label = "picker", .always_new = true}));
}

// Returns the command's output.
std::string Berth(TestDaemon& daemon, const std::vector<std::string>& words) {
  return BerthCommand(daemon.folder()).Show(words);
}

absl::Duration Middle(std::vector<absl::Duration> times) {
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

// Returns the first words of a line.
std::vector<std::string> Words(absl::string_view line, size_t count) {
  std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
  words.resize(std::min(count, words.size()));
  return words;
}

// ---- Nodes --------------------------------------------------------------------------------------------------

struct Node {
  const char* name;
  int devices;
  std::string text;
};

class NodesTest : public ::testing::TestWithParam<Node> {};

INSTANTIATE_TEST_SUITE_P(
    Sizes, NodesTest,
    ::testing::Values(
        Node{"One", 1, "[[device]]\nmemory = \"8MiB\"\nmultiprocessors = 132\n"},
        Node{"Two", 2, "[[device]]\ncount = 2\nmemory = \"8MiB\"\nmultiprocessors = 132\n"},
        Node{"Eight", 8, "[[device]]\ncount = 8\nmemory = \"8MiB\"\nmultiprocessors = 132\nisland = 0\n"},
        Node{"Sixteen", 16, "[[device]]\ncount = 16\nmemory = \"8MiB\"\nmultiprocessors = 132\n"},
        Node{"FiftySixSlices", 56,
             "[[device]]\ncount = 8\nslices = 7\nmemory = \"56MiB\"\nmultiprocessors = 132\n"},
        Node{"Mixed", 3,
             "[[device]]\nname = \"NVIDIA H200\"\nmemory = \"16MiB\"\nmultiprocessors = 132\n"
             "[[device]]\ncount = 2\nname = \"NVIDIA L4\"\nmemory = \"8MiB\"\n"
             "multiprocessors = 58\n"}),
    [](const auto& info) { return info.param.name; });

TEST_P(NodesTest, EachDeviceIsShownAndServes) {
  const Node& node = GetParam();
  NodeFile file(node.text, "200ms");
  TestDaemon daemon(With(file));
  v1::ListInventoryResponse inventory;
  const auto read = [&] {
    inventory = Must(daemon.inspector().ListInventory());
    return std::all_of(inventory.devices().begin(), inventory.devices().end(), [](const auto& device) {
      return device.condition().health() == v1::Condition::ANSWERS;
    });
  };
  // A device that answers has a reading that is not old.
  ASSERT_TRUE(Eventually(read));
  ASSERT_EQ(inventory.devices_size(), node.devices);
  std::set<std::string> uuids;
  Actor actor(daemon);
  for (int i = 0; i < node.devices; ++i) {
    const v1::DeviceInventory& device = inventory.devices(i);
    uuids.insert(device.device().uuid());
    EXPECT_EQ(device.device().ordinal(), i);
    EXPECT_GT(device.hardware().multiprocessors(), 0u);
    EXPECT_LT(device.condition().age_ms(), 5'000u);
    EXPECT_EQ(device.condition().temperature().absent(), "not read");
    actor.Do(absl::StrCat("allocate b", i, " 4096 device=", i));
  }
  EXPECT_EQ(uuids.size(), node.devices);
  EXPECT_EQ(Must(daemon.inspector().GetTopology()).rows_size(), node.devices);
  actor.Quit();
  daemon.ExpectAccountsBack();
}

TEST(InventoryTest, DeviceHardwareAndConditionAreShown) {
  NodeFile node(
      "[[device]]\nuuid = \"GPU-a\"\nname = \"NVIDIA H200\"\ncapability = \"9.0\"\nmultiprocessors = 132\n"
      "threads_per_multiprocessor = 2048\nl2_bytes = 62914560\nmemory = \"64MiB\"\n"
      "temperature = 41\nslowdown_temperature = 87\npower = \"not supported\"\necc_mode = 1\n"
      "clock = 1980\nfree_bytes = \"60MiB\"\n");
  TestDaemon daemon(With(node));
  ASSERT_TRUE(Eventually([&] { return Look(daemon, 0).condition().has_read_time(); }));
  const v1::DeviceInventory seen = Look(daemon, 0);
  EXPECT_EQ(seen.hardware().compute_capability(), 90u);
  EXPECT_EQ(seen.hardware().compile_architecture(), "compute_90");
  EXPECT_EQ(seen.hardware().warp_size(), 32u);
  EXPECT_TRUE(seen.hardware().tensor_memory_accelerator());
  EXPECT_EQ(seen.hardware().l2_bytes(), 62914560u);
  EXPECT_EQ(seen.condition().temperature().value(), 41u);
  EXPECT_EQ(seen.condition().power().absent(), "not supported by the device");
  EXPECT_EQ(seen.condition().clock().value(), 1980u);
  EXPECT_EQ(seen.condition().free_bytes().value(), MiB(60).count());
  EXPECT_EQ(seen.condition().total_bytes().value(), MiB(64).count());
  // 132 multiprocessors, 150 for compute capability 8.0 or more, and 4 for each GiB of the 60 MiB that could be
  // granted.
  EXPECT_EQ(seen.score(), 132 + 150 + 4 * 60 / 1024.0);
  EXPECT_EQ(seen.score_version(), 1u);
  node.Now("[now.0]\ntemperature = 90\nxids = [74, 31]\n");
  ASSERT_TRUE(Eventually([&] { return Look(daemon, 0).condition().health() == v1::Condition::DEGRADED; }));
  const v1::Condition hot = Look(daemon, 0).condition();
  // A program's own Xid does not count against the device.
  EXPECT_EQ(hot.trouble(), "90 degrees Celsius, throttled from 87; Xid 74");
  ASSERT_EQ(hot.events_size(), 2);
  EXPECT_EQ(hot.events(0).kind(), v1::DeviceEvent::XID);
  EXPECT_EQ(hot.events(0).code(), 74u);
  EXPECT_EQ(hot.events(1).code(), 31u);
  EXPECT_EQ(DeviceOf(daemon, 0).state(), v1::Device::READY) << "it is said, and served";
  const std::string devices = Berth(daemon, {"devices"});
  EXPECT_TRUE(absl::StrContains(devices, " READ ") && absl::StrContains(devices, " ms ")) << devices;
  const std::string table = Berth(daemon, {"devices", "--hardware"});
  for (const char* const cell :
       {"NVIDIA H200", "9.0", "132", "SCORE", "282.2", "90 C", "DEGRADED", "1980 MHz", "Xid 74"}) {
    EXPECT_TRUE(absl::StrContains(table, cell)) << cell << " in\n" << table;
  }
  const std::string json = Berth(daemon, {"devices", "--hardware", "--json"});
  for (const char* const field : {"\"compute_capability\": 90", "\"score\": 282.2", "\"score_version\": 1"}) {
    EXPECT_TRUE(absl::StrContains(json, field)) << field << " in\n" << json;
  }
}

TEST(InventoryTest, IslandsFollowLinks) {
  NodeFile node(
      "[[device]]\ncount = 2\nisland = 0\nnvlinks = 18\n[[device]]\ncount = 2\nisland = 1\n[[device]]\n");
  TestDaemon daemon(With(node));
  const v1::Topology at_once = Must(daemon.inspector().GetTopology());
  std::vector<uint32_t> islands;
  for (const v1::Topology::Row& row : at_once.rows()) islands.push_back(row.island());
  EXPECT_EQ(islands, (std::vector<uint32_t>{0, 0, 2, 2, 4})) << "from the start on";
  ASSERT_TRUE(Eventually([&] {
    const v1::Topology topology = Must(daemon.inspector().GetTopology());
    return topology.has_read_time() && topology.rows(0).reaches(4) == v1::Topology::NONE;
  }));
  const v1::Topology topology = Must(daemon.inspector().GetTopology());
  EXPECT_EQ(topology.rows(0).reaches(0), v1::Topology::SELF);
  EXPECT_EQ(topology.rows(0).reaches(1), v1::Topology::NVLINK);
  EXPECT_EQ(topology.rows(0).reaches(2), v1::Topology::NONE);
  EXPECT_EQ(topology.rows(0).nvlinks().value(), 18u);
  EXPECT_EQ(topology.rows(2).nvlinks().absent(), "not read");
  EXPECT_TRUE(absl::StrContains(Berth(daemon, {"topology"}), "NV18"));
}

// ---- A driver that hangs ------------------------------------------------------------------------------------

TEST(InventoryTest, HungDriverDelaysNoCallsAndMonitorIsReplaced) {
  NodeFile node("[[device]]\ncount = 3\nmemory = \"8MiB\"\nfree_bytes = \"8MiB\"\n");
  TestDaemon daemon(With(node, "1s"));
  const auto heard = [&](int device) { return Look(daemon, device).condition().has_read_time(); };
  ASSERT_TRUE(Eventually([&] { return heard(0) && heard(1) && heard(2); }));
  const Inspector inspector = daemon.inspector();
  const auto answers = [&](std::vector<absl::Duration>& times) {
    const absl::Time begin = absl::Now();
    const v1::ListInventoryResponse answer = Must(inspector.ListInventory());
    times.push_back(absl::Now() - begin);
    return answer;
  };
  std::vector<absl::Duration> before, during;
  for (int i = 0; i < 20; ++i) answers(before);
  const pid_t hung = MonitorOf(daemon);
  node.Now("[now.1]\nhangs = true\n");
  ASSERT_TRUE(Eventually([&] { return answers(during).devices(1).condition().health() == v1::Condition::SILENT; }));
  // A call that waited for the driver, or for its deadline of a second, would take longer than before. The middle of
  // many calls hides one that the machine stalled.
  std::cout << before.size() << " answers before, in the middle " << Middle(before) << "; " << during.size()
            << " during, in the middle " << Middle(during) << std::endl;
  EXPECT_LT(Middle(during), Middle(before) + absl::Milliseconds(500));
  const v1::Condition silent = Look(daemon, 1).condition();
  EXPECT_GE(silent.age_ms(), 5'000u);
  EXPECT_EQ(silent.free_bytes().value(), MiB(8).count()) << "what was said last";
  // Another monitor continues to read the other devices.
  ASSERT_TRUE(Eventually([&] {
    const pid_t now = MonitorOf(daemon);
    return now != 0 && now != hung;
  }));
  EXPECT_FALSE(IsAlive(hung));
  EXPECT_TRUE(Eventually([&] { return Look(daemon, 0).condition().age_ms() < 500; }));
  EXPECT_TRUE(Eventually([&] { return Look(daemon, 2).condition().age_ms() < 500; }));
  EXPECT_EQ(DeviceOf(daemon, 1).state(), v1::Device::READY) << "its worker does not ask the same";
  node.Now("");
  EXPECT_TRUE(Eventually([&] { return Look(daemon, 1).condition().health() == v1::Condition::ANSWERS; }));
}

TEST(InventoryTest, KilledOrStoppedMonitorIsReplaced) {
  NodeFile node(kTwo);
  TestDaemon daemon(With(node, "1s"));
  for (const int signal : {SIGKILL, SIGSTOP}) {
    pid_t before = 0;
    ASSERT_TRUE(Eventually([&] { return (before = MonitorOf(daemon)) != 0; }));
    ASSERT_TRUE(Eventually([&] { return Look(daemon, 1).condition().age_ms() < 500; }));
    ASSERT_EQ(::kill(before, signal), 0);
    ASSERT_TRUE(Eventually([&] {
      const pid_t now = MonitorOf(daemon);
      return now != 0 && now != before;
    })) << signal;
    EXPECT_TRUE(Eventually([&] {
      const v1::Condition condition = Look(daemon, 1).condition();
      return condition.health() == v1::Condition::ANSWERS && condition.age_ms() < 500;
    })) << signal;
  }
  daemon.ExpectAccountsBack();
}

// ---- Devices that are lost ----------------------------------------------------------------------------------

TEST(InventoryTest, LostDeviceStopsAndReturnsAfterSelfTest) {
  NodeFile node(kTwo);
  TestDaemon daemon(With(node));
  Actor actor(daemon), other(daemon);
  actor.Do("allocate a 4096");
  actor.Do("map a");
  other.Do("allocate b 4096 device=1");
  node.Now("[now.0]\nxids = [79]\n");
  ASSERT_TRUE(Becomes(daemon, 0, v1::Device::STOPPED));
  EXPECT_EQ(DeviceOf(daemon, 0).last_failure(), "Xid 79: the device has fallen off the bus");
  EXPECT_TRUE(Eventually([&] { return DeviceOf(daemon, 0).generation() == 2; }));
  const v1::Topology topology = Must(daemon.inspector().GetTopology());
  EXPECT_EQ(topology.rows(0).generation(), 2u) << "who mapped memory over this row has to map it anew";
  EXPECT_EQ(topology.rows(1).generation(), 1u);
  EXPECT_TRUE(Refused(actor.Ask("allocate c 4096"), Reason::kDeviceStopped));
  EXPECT_TRUE(Eventually([&] { return Refused(actor.Ask("access a"), Reason::kStale); }));
  EXPECT_TRUE(Ok(other.Ask("allocate c 4096 device=1")));
  EXPECT_EQ(DeviceOf(daemon, 1).generation(), 1u);
  // The device answers again, but does not work.
  node.Now("[now.0]\nfails_self_test = \"its memory is bad\"\n");
  ASSERT_TRUE(Eventually([&] {
    const v1::Device device = DeviceOf(daemon, 0);
    return device.state() == v1::Device::STOPPED &&
           device.last_failure() == "the self-test failed: its memory is bad";
  }));
  EXPECT_TRUE(Refused(actor.Ask("allocate c 4096"), Reason::kDeviceStopped,
                      {{"why", "the self-test failed: its memory is bad"}}));
  // The daemon tests it once, not forever; an operator may start another test.
  EXPECT_EQ(Must(daemon.inspector().EnableDevice(0)).state(), v1::Device::PROBATION);
  ASSERT_TRUE(Becomes(daemon, 0, v1::Device::STOPPED));
  node.Now("");
  EXPECT_EQ(Must(daemon.inspector().EnableDevice(0)).state(), v1::Device::PROBATION);
  ASSERT_TRUE(Becomes(daemon, 0, v1::Device::READY));
  EXPECT_TRUE(Ok(actor.Ask("allocate c 4096")));
  EXPECT_EQ(DeviceOf(daemon, 0).generation(), 2u);
  // Without an operator, the device returns once it works.
  node.Now("[now.0]\nlost = true\n");
  ASSERT_TRUE(Becomes(daemon, 0, v1::Device::STOPPED));
  node.Now("");
  ASSERT_TRUE(Becomes(daemon, 0, v1::Device::READY));
  EXPECT_EQ(DeviceOf(daemon, 0).generation(), 3u);
  actor.Quit();
  other.Quit();
  daemon.ExpectAccountsBack();
}

TEST(InventoryTest, BrokerDeathDoesNotLoseDeviceTwice) {
  NodeFile node(kTwo);
  TestDaemon daemon(With(node));
  node.Now("[now.0]\nlost = true\n");
  ASSERT_TRUE(Becomes(daemon, 0, v1::Device::STOPPED));
  ASSERT_TRUE(Eventually([&] { return DeviceOf(daemon, 0).generation() == 2; }));
  const pid_t broker = daemon.broker();
  ASSERT_EQ(::kill(broker, SIGKILL), 0);
  ASSERT_TRUE(Eventually([&] { return !IsAlive(broker); }));
  const auto state = [&] {
    const absl::StatusOr<v1::ListInventoryResponse> answer = daemon.inspector().ListInventory();
    return answer.ok() && answer->devices(0).condition().health() == v1::Condition::LOST &&
           answer->devices(0).device().state() == v1::Device::STOPPED &&
           answer->devices(1).device().state() == v1::Device::READY;
  };
  ASSERT_TRUE(Eventually(state));
  EXPECT_EQ(DeviceOf(daemon, 0).generation(), 2u);
  node.Now("");
  ASSERT_TRUE(Becomes(daemon, 0, v1::Device::READY));
}

// ---- Devices that are drained -------------------------------------------------------------------------------

TEST(InventoryTest, DrainedDeviceGrantsNothingAndLeasesStay) {
  NodeFile node(kTwo);
  TestDaemon daemon({.flags = {node.flag()}, .config = "[pools.gpu-tests]\ncap = 8\n"});
  Actor actor(daemon);
  actor.Do("allocate a 4096");
  actor.Do("map a");
  actor.Do("fill a 3");
  actor.Do("acquire p key=p device=GPU-0");
  const std::string said = Berth(daemon, {"--admin", "device", "drain", "0", "--reason", "a fan is loud"});
  EXPECT_TRUE(absl::StrContains(Berth(daemon, {"health"}), "1 of 2 devices ready, 1 drained"));
  EXPECT_EQ(said, "device 0: DRAINING (a fan is loud)\n");
  EXPECT_TRUE(absl::StrContains(Berth(daemon, {"devices"}), "a fan is loud"));
  const std::map<std::string, std::string> why = {{"why", "a fan is loud"}};
  EXPECT_TRUE(Refused(actor.Ask("allocate b 4096"), Reason::kDeviceDraining, why));
  EXPECT_TRUE(Refused(actor.Ask("acquire q key=q device=GPU-0 try"), Reason::kDeviceDraining, why));
  EXPECT_TRUE(Refused(actor.Ask("reserve r 0=4096"), Reason::kDeviceDraining, why));
  EXPECT_TRUE(Ok(actor.Ask("acquire q key=q device=any try"))) << "the other one";
  EXPECT_TRUE(Ok(actor.Ask("allocate b 4096 device=1")));
  EXPECT_TRUE(Ok(actor.Ask("check a 3")));
  EXPECT_TRUE(Ok(actor.Ask("access a")));
  EXPECT_TRUE(Ok(actor.Ask("release p")));
  EXPECT_TRUE(Ok(actor.Ask("drop a")));
  actor.Quit();
  // The drain persists over the broker's death.
  ASSERT_EQ(::kill(daemon.broker(), SIGKILL), 0);
  ASSERT_TRUE(Eventually([&] {
    const absl::StatusOr<v1::ListDevicesResponse> answer = daemon.inspector().ListDevices();
    return answer.ok() && answer->devices(0).state() == v1::Device::DRAINING &&
           answer->devices(0).drain_reason() == "a fan is loud";
  }));
  Must(daemon.inspector().UndrainDevice(0), "undrain");
  // The next broker may not have reached the worker yet.
  EXPECT_TRUE(Eventually([&] {
    return Must(daemon.inspector().ListDevices()).devices(0).state() == v1::Device::READY;
  }));
  Actor after(daemon);
  EXPECT_TRUE(Ok(after.Ask("allocate b 4096")));
  after.Quit();
  EXPECT_EQ(Must(daemon.inspector().DrainDevice(0, "a\nb")).drain_reason(), "a?b");
  Must(daemon.inspector().UndrainDevice(0), "undrain");
  EXPECT_TRUE(Refused(daemon.inspector().DrainDevice(7, ""), Reason::kNotFound));
  EXPECT_EQ(Must(daemon.inspector().UndrainDevice(1)).state(), v1::Device::READY) << "it was not drained";
}

TEST(InventoryTest, WatcherIsNotifiedOfDrainLossAndReturn) {
  NodeFile node(kTwo);
  TestDaemon daemon(With(node));
  ASSERT_TRUE(Becomes(daemon, 0, v1::Device::READY));
  int step = 0;
  const absl::Status watched = daemon.inspector().WatchDevices([&](const v1::WatchDevicesResponse& answer) {
    const v1::Device& device = answer.devices(0);
    if (step == 0) {
      Must(daemon.inspector().DrainDevice(0, "loud"));
    } else if (step == 1 && device.state() == v1::Device::DRAINING) {
      EXPECT_EQ(device.drain_reason(), "loud");
      node.Now("[now.0]\nlost = true\n");
    } else if (step == 2 && device.state() == v1::Device::STOPPED && device.generation() == 2) {
      EXPECT_EQ(device.last_failure(), "the driver reports the device as lost");
      node.Now("");
    } else if (step == 3 && device.state() == v1::Device::DRAINING) {
      Must(daemon.inspector().UndrainDevice(0));
    } else {
      return step < 4 || device.state() != v1::Device::READY;
    }
    ++step;
    return true;
  });
  EXPECT_TRUE(watched.ok()) << watched;
}

// Returns the next answer about the first device; the watch continues where `*token` is set.
v1::DeviceReports NextReports(v1::DeviceService::Stub& stub, std::string* token) {
  v1::WatchDevicesRequest request;
  request.set_resume_token(*token);
  v1::WatchDevicesResponse answer;
  // Repeats where the connection was an earlier broker's.
  EXPECT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    const auto reader = stub.WatchDevices(&context, request);
    const bool read = reader->Read(&answer);
    context.TryCancel();
    return read;
  }));
  *token = answer.resume_token();
  return answer.reports_size() == 0 ? v1::DeviceReports() : answer.reports(0);
}

TEST(InventoryTest, ResumedWatchReportsMissedEventsAndMergesBursts) {
  NodeFile node(kTwo);
  TestDaemon daemon(With(node));
  ASSERT_TRUE(Becomes(daemon, 0, v1::Device::READY));
  ASSERT_TRUE(Eventually([&] { return Look(daemon, 0).condition().has_read_time(); }));
  const auto stub = v1::DeviceService::NewStub(grpc::CreateChannel(
      absl::StrCat("unix:", daemon.folder(), "/observer.sock"), grpc::InsecureChannelCredentials()));
  std::string token;
  EXPECT_EQ(NextReports(*stub, &token).events_total(), 0u);
  // No watch is open.
  std::string burst = "74";
  for (int i = 0; i < 1'000; ++i) absl::StrAppend(&burst, ", 31");
  node.Now(absl::StrCat("[now.0]\nuncorrected_errors = 0\nxids = [", burst, "]\n"));
  ASSERT_TRUE(Eventually([&] { return Look(daemon, 0).condition().events_total() == 1'001; }));
  const v1::DeviceReports missed = NextReports(*stub, &token);
  EXPECT_EQ(missed.uuid(), DeviceOf(daemon, 0).uuid());
  EXPECT_EQ(missed.events_total(), 1'001u);
  ASSERT_EQ(missed.events_size(), 2);
  EXPECT_EQ(missed.events(0).code(), 74u);
  EXPECT_EQ(missed.events(1).code(), 31u);
  EXPECT_EQ(missed.events(1).count(), 1'000u);
  node.Now(absl::StrCat("[now.0]\nuncorrected_errors = 3\nxids = [", burst, "]\n"));
  // A token of the current state waits for the next report.
  v1::DeviceReports next = missed;
  while (!::testing::Test::HasFailure() && next.events_total() == 1'001) next = NextReports(*stub, &token);
  EXPECT_EQ(next.events_total(), 1'004u);
  ASSERT_EQ(next.events_size(), 3);
  EXPECT_EQ(next.events(2).kind(), v1::DeviceEvent::UNCORRECTED_ECC);
  EXPECT_EQ(next.events(2).count(), 3u);
  // A report survives the broker and the monitor that received it.
  daemon.KillBroker();
  ASSERT_TRUE(Eventually([&] { return Look(daemon, 0).condition().events_total() == 1'004; }));
  EXPECT_EQ(NextReports(*stub, &token).events_total(), 1'004u);
  // The current monitor has received more reports than the token covers.
  node.Now("[now.0]\nuncorrected_errors = 3\nxids = [95]\n");
  ASSERT_EQ(::kill(MonitorOf(daemon), SIGKILL), 0);
  v1::DeviceReports last = next;
  while (!::testing::Test::HasFailure() && last.events_total() == 1'004) last = NextReports(*stub, &token);
  EXPECT_EQ(last.events_total(), 1'005u);
  ASSERT_EQ(last.events_size(), 4);
  EXPECT_EQ(last.events(0).code(), 74u);
  EXPECT_EQ(last.events(1).count(), 1'000u);
  EXPECT_EQ(last.events(3).code(), 95u);
  // The same reports in the command's table.
  Subprocess watch = BerthCommand(daemon.folder()).Start({"devices", "--watch"});
  std::string line;
  while (!absl::StartsWith(line, "DEVICE  REPORTED")) line = Must(watch.ReadLine());
  EXPECT_EQ(Words(Must(watch.ReadLine()), 4), (std::vector<std::string>{"0", "XID", "74", "1"}));
  EXPECT_EQ(Words(Must(watch.ReadLine()), 4), (std::vector<std::string>{"0", "XID", "31", "1000"}));
  EXPECT_EQ(Words(Must(watch.ReadLine()), 4), (std::vector<std::string>{"0", "UNCORRECTED_ECC", "-", "3"}));
  line = Must(watch.ReadLine());
  EXPECT_EQ(Words(line, 4), (std::vector<std::string>{"0", "XID", "95", "1"}));
  EXPECT_TRUE(absl::StrContains(line, missed.uuid())) << line;
  watch.Kill();
}

TEST(InventoryTest, WaiterForDrainedDeviceIsRejected) {
  NodeFile node(kTwo);
  TestDaemon daemon(
      {.flags = {node.flag(), "--device-budget=4MiB"}, .config = "[pools.gpu-tests]\ncap = 1\n"});
  Actor holder(daemon), bytes(daemon), permit(daemon);
  holder.Do("allocate a 4194304");
  holder.Do("acquire p key=p");
  bytes.SendLine("allocate b 4194304 wait=60s");
  permit.SendLine("acquire q device=GPU-0");
  ASSERT_TRUE(Eventually([&] { return Must(daemon.inspector().ListPermits()).waiters_size() == 1; }));
  EXPECT_TRUE(Ok(daemon.inspector().DrainDevice(0, "soon gone")));
  EXPECT_TRUE(Refused(permit.Answer(), Reason::kDeviceDraining, {{"why", "soon gone"}}));
  EXPECT_TRUE(Refused(bytes.Answer(), Reason::kDeviceDraining, {{"why", "soon gone"}}));
  holder.Quit();
  bytes.Quit();
  permit.Quit();
}

// ---- Devices that the daemon picks --------------------------------------------------------------------------

class PickTest : public ::testing::Test {
 protected:
  absl::StatusOr<uint32_t> Pick(BlockOptions options, std::vector<Block>* keep = nullptr) {
    options.bytes = MiB(2);
    absl::StatusOr<Block> block = Block::Allocate(session_, options);
    if (!block.ok()) return block.status();
    const uint32_t device = block->device();
    if (keep != nullptr) keep->push_back(*std::move(block));
    return device;
  }
  absl::StatusOr<std::string> PickFor(PermitOptions options) {
    options.max_wait = absl::ZeroDuration();
    absl::StatusOr<Permit> permit = Permit::Acquire(session_, options);
    if (!permit.ok()) return permit.status();
    return permit->device_uuid();
  }

  // Old and small, new and small, new and large, new and larger but far.
  const NodeFile node_{
      "[[device]]\nuuid = \"A\"\ncapability = \"7.0\"\nmultiprocessors = 80\nmemory = \"64MiB\"\n"
      "[[device]]\nuuid = \"B\"\ncapability = \"9.0\"\nmultiprocessors = 132\nmemory = \"64MiB\"\nisland = "
      "1\n"
      "[[device]]\nuuid = \"C\"\ncapability = \"9.0\"\nmultiprocessors = 100\nmemory = \"128MiB\"\nisland = "
      "1\n"
      "[[device]]\nuuid = \"D\"\ncapability = \"8.0\"\nmultiprocessors = 108\nmemory = \"256MiB\"\n"};
  TestDaemon daemon_{{.flags = {node_.flag()}, .config = "[pools.gpu-tests]\ncap = 8\n"}};
  const std::shared_ptr<Session> session_ = OpenSession(daemon_);
};

TEST_F(PickTest, BlockHintPicksDevice) {
  EXPECT_EQ(*Pick({.pick = "best"}), 3u);
  EXPECT_EQ(*Pick({.pick = "highest-score"}), 1u);
  EXPECT_EQ(*Pick({.pick = "best", .min_capability = 90}), 2u);
  EXPECT_EQ(*Pick({.pick = "best", .island_of = "B"}), 2u);
  EXPECT_EQ(*Pick({.pick = "any", .min_free = MiB(200)}), 3u);
  std::vector<uint32_t> turns;
  for (int i = 0; i < 5; ++i) turns.push_back(*Pick({.pick = "round-robin"}));
  EXPECT_EQ(turns, (std::vector<uint32_t>{0, 1, 2, 3, 0}));
  // A full device is skipped: C is the next best.
  v1::SetBudgetRequest budget;
  budget.set_device(3);
  budget.set_limit_bytes(MiB(2).count());
  ASSERT_TRUE(Ok(daemon_.inspector().SetBudget(budget)));
  std::vector<Block> blocks;
  EXPECT_EQ(*Pick({.pick = "best"}, &blocks), 3u);
  EXPECT_EQ(*Pick({.pick = "best"}, &blocks), 2u);
}

TEST_F(PickTest, PermitHintPicksDevice) {
  EXPECT_EQ(*PickFor({.device = "best"}), "D");
  EXPECT_EQ(*PickFor({.device = "highest-score"}), "B");
  EXPECT_EQ(*PickFor({.device = "any", .min_capability = 90, .island_of = "C"}), "C") << "it has more free";
  EXPECT_EQ(*PickFor({.device = "A"}), "A");
  EXPECT_EQ(*PickFor({.device = "round-robin"}), "B");
  EXPECT_EQ(*PickFor({.device = "round-robin"}), "C");
  const Permit held = Must(Permit::Acquire(session_, {.holder_key = "other", .device = "C"}));
  EXPECT_EQ(*PickFor({.device = "any", .min_capability = 90}), "B") << "the least loaded";
}

TEST_F(PickTest, ImpossibleConstraintNamesEachDevicesLack) {
  const absl::Status never = Pick({.pick = "any", .min_capability = 100}).status();
  EXPECT_TRUE(Refused(never, Reason::kNoDevice));
  for (const char* const text :
       {"no eligible device", "10.0 or more", "device 0 is of compute capability 7.0",
        "device 3 is of compute capability 8.0"}) {
    EXPECT_TRUE(absl::StrContains(never.message(), text)) << never;
  }
  EXPECT_TRUE(Refused(PickFor({.device = "any", .min_capability = 100}), Reason::kNoDevice));
  EXPECT_TRUE(
      Refused(PickFor({.device = "best", .min_capability = 90, .island_of = "A"}), Reason::kNoDevice));
  EXPECT_TRUE(Refused(Pick({.pick = "any", .island_of = "Z"}), Reason::kNotFound, {{"id", "Z"}}));
  EXPECT_TRUE(Refused(Pick({.pick = "Z"}), Reason::kNotFound, {{"id", "Z"}}));
  const absl::Status now = Pick({.pick = "any", .min_free = GiB(1)}).status();
  EXPECT_TRUE(Refused(now, Reason::kNoDevice));
  EXPECT_TRUE(absl::StrContains(now.message(), "free of 1073741824")) << now;
  // A request that may not wait gets the same reason.
  ASSERT_TRUE(Ok(daemon_.inspector().DrainDevice(3, "loud")));
  const absl::Status small = PickFor({.device = "any", .min_free = MiB(200)}).status();
  EXPECT_TRUE(Refused(small, Reason::kNoPermit)) << small;
  EXPECT_TRUE(absl::StrContains(small.message(), "device 3 is being drained: loud")) << small;
  EXPECT_TRUE(absl::IsInvalidArgument(Pick({.min_capability = 90}).status())) << "without a pick";
}

TEST_F(PickTest, RunCommandTakesDeviceHints) {
  const std::string device =
      Berth(daemon_, {"run", "--quiet", "--device", "highest-score", "--min-capability", "8.0", "--", "sh",
                      "-c", "echo $BERTH_DEVICE"});
  EXPECT_EQ(device, "B\n");
}

}  // namespace
}  // namespace berth::testing
