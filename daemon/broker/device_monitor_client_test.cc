#include "daemon/broker/device_monitor_client.h"

#include <sys/socket.h>
#include <time.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "common/os/fd_passing.h"
#include "daemon/broker/testing/idle_sink.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

// Records the last worker command and the number of device changes; ignores other effects.
class CommandSink final : public IdleSink {
 public:
  void Apply(const core::SendWorkerCommand& effect) override { last_command = static_cast<int>(effect.command); }
  void Apply(const core::DevicesChanged&) override { ++changes; }

  std::atomic<int> last_command = -1;
  std::atomic<int> changes = 0;
};

int64_t Now() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

class DeviceMonitorClientTest : public ::testing::Test {
 protected:
  DeviceMonitorClientTest()
      : core_(
            Config(), [] { return 1; }, [](core::StreamKey) { return core::FenceValues(); }),
        broker_(&core_, &sink_),
        loop_(*EventLoop::Create()),
        monitor_client_(loop_.get(), &broker_, Records()) {
    loop_->SetWakeCallback([this] { std::exchange(task_, [] {})(); });
    thread_ = std::thread([this] { loop_->Run(); });
    broker_.Step([](core::Core& core, absl::Time now, core::Effects* effects) {
      for (uint32_t device = 0; device < 2; ++device) core.WorkerUp(now, device, WorkerKind::kMain, effects);
    });
    socket_ = Connect();
  }
  ~DeviceMonitorClientTest() override {
    loop_->Stop();
    thread_.join();
  }

  static core::Config Config() {
    core::Config config = {.node = 1, .incarnation = 1};
    for (uint32_t i = 0; i < 2; ++i) {
      config.devices.push_back(
          {.ordinal = i, .uuid = "GPU-" + std::to_string(i), .total = MiB(64), .budget = MiB(64)});
    }
    return config;
  }
  static std::vector<DeviceRecord> Records() {
    std::vector<DeviceRecord> records(2);
    for (uint32_t i = 0; i < 2; ++i) {
      records[i].ordinal = i;
      records[i].compute_capability = 90;
      records[i].multiprocessors = 132;
      strcpy(records[i].pci_id, "00000000:4E:00.0");
    }
    return records;
  }
  // Returns the monitor's end of a new socket.
  UniqueFd Connect() {
    auto sockets = SocketPair();
    EXPECT_TRUE(sockets.ok());
    EXPECT_TRUE(SetNonBlocking(sockets->first.get()).ok());
    // On the loop's thread, which owns the client.
    std::promise<void> done;
    task_ = [&] {
      EXPECT_TRUE(monitor_client_.MonitorIsUp(std::move(sockets->first)).ok());
      done.set_value();
    };
    loop_->Wake();
    done.get_future().wait();
    return std::move(sockets->second);
  }
  template <typename Condition>
  bool Eventually(Condition condition) const {
    for (const absl::Time deadline = absl::Now() + absl::Seconds(60); absl::Now() < deadline;) {
      if (condition()) return true;
      std::this_thread::yield();
    }
    return false;
  }
  DeviceLook Look(uint32_t device) const { return monitor_client_.Look(EventLoop::SteadyNow()).at(device); }
  core::DeviceView View(uint32_t device) {
    return broker_.Read([&](const core::Core& core) { return core.ListDevices().at(device); });
  }

  CommandSink sink_;
  core::Core core_;
  Broker broker_;
  std::unique_ptr<EventLoop> loop_;
  DeviceMonitorClient monitor_client_;
  // Runs on the loop's thread at each wake.
  std::function<void()> task_ = [] {};
  std::thread thread_;
  UniqueFd socket_;
};

TEST_F(DeviceMonitorClientTest, SurveyIsShownWithTimeAndReportedToCore) {
  EXPECT_EQ(Look(0).condition.health, DeviceHealth::kUnknown);
  EXPECT_EQ(Look(0).hardware.multiprocessors, 132u);
  EXPECT_EQ(Look(0).hardware.pci_id, "00000000:4E:00.0");
  monitor::Survey survey = {.device = 1, .taken_ns = Now(), .nvlink_peers = 1, .known_peers = 1};
  survey.metrics[DeviceMetric::kTemperature] = Known(41);
  survey.events_total = 3;
  survey.event_count = 1;
  survey.events[0] = {.code = 13, .heard_ns = Now()};
  survey.instance_count = 1;
  strcpy(survey.instances[0].uuid, "MIG-1");
  ASSERT_TRUE(SendStruct(socket_.get(), survey).ok());
  ASSERT_TRUE(Eventually([&] { return Look(1).condition.read_at.has_value(); }));
  const DeviceCondition seen = Look(1).condition;
  EXPECT_EQ(seen.health, DeviceHealth::kAnswers);
  EXPECT_EQ(seen.metrics[DeviceMetric::kTemperature], Known(41));
  EXPECT_EQ(seen.events_total, 3u);
  ASSERT_EQ(seen.events.size(), 1u);
  EXPECT_EQ(seen.events[0].code, 13u);
  ASSERT_EQ(seen.instances.size(), 1u);
  EXPECT_EQ(seen.instances[0].uuid, "MIG-1");
  EXPECT_EQ(seen.peers.known, 1u);
  EXPECT_EQ(seen.peers.any, 1u);
  EXPECT_TRUE(Eventually([&] {
    return broker_.Read([](const core::Core& core) { return core.ListIslands()[1].island; }) == 0;
  }));
  // The report grows old, and the health shows it.
  EXPECT_EQ(monitor_client_.Look(EventLoop::SteadyNow() + absl::Seconds(6)).at(1).condition.health,
            DeviceHealth::kSilent);
  EXPECT_EQ(Look(0).condition.health, DeviceHealth::kUnknown);
}

TEST_F(DeviceMonitorClientTest, OnlySurveyWithNewReportsIsChange) {
  const auto survey = [&](uint64_t total) {
    monitor::Survey said = {.device = 1, .taken_ns = Now(), .event_count = total > 0 ? 1u : 0u, .events_total = total};
    said.events[0] = {.code = 31, .count = total, .heard_ns = Now()};
    ASSERT_TRUE(SendStruct(socket_.get(), said).ok());
    // Sent after the report, and so received after it.
    const absl::Time before = EventLoop::SteadyNow();
    ASSERT_TRUE(SendStruct(socket_.get(), monitor::Survey{.device = 0, .taken_ns = Now()}).ok());
    ASSERT_TRUE(Eventually([&] { return Look(0).condition.read_at.value_or(before) > before; }));
  };
  survey(0);
  const int before = sink_.changes;
  survey(0);
  EXPECT_EQ(sink_.changes, before);
  survey(1'000);
  EXPECT_EQ(sink_.changes, before + 1);
  survey(1'000);
  EXPECT_EQ(sink_.changes, before + 1);
  survey(1'001);
  EXPECT_EQ(sink_.changes, before + 2);
}

TEST_F(DeviceMonitorClientTest, ReportsOutliveMonitor) {
  monitor::Survey survey = {.device = 1, .taken_ns = Now(), .event_count = 2, .events_total = 3};
  survey.events[0] = {.code = 31, .count = 2, .heard_ns = Now()};
  survey.events[1] = {.code = 79, .heard_ns = Now()};
  ASSERT_TRUE(SendStruct(socket_.get(), survey).ok());
  ASSERT_TRUE(Eventually([&] { return Look(1).condition.events_total == 3; }));
  EXPECT_EQ(Look(1).condition.events[0].count, 2u);
  socket_.reset();
  socket_ = Connect();
  EXPECT_EQ(Look(1).condition.events_total, 3u);
  // A new monitor starts counting from zero, and repeats its events with each survey.
  survey = monitor::Survey{.device = 1, .taken_ns = Now(), .event_count = 1, .events_total = 5};
  survey.events[0] = {.code = 31, .count = 5, .heard_ns = Now()};
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(SendStruct(socket_.get(), survey).ok());
  ASSERT_TRUE(SendStruct(socket_.get(), monitor::Survey{.device = 0, .taken_ns = Now()}).ok());
  ASSERT_TRUE(Eventually([&] { return Look(0).condition.read_at.has_value(); }));
  const DeviceCondition seen = Look(1).condition;
  EXPECT_EQ(seen.events_total, 8u);
  ASSERT_EQ(seen.events.size(), 2u);
  EXPECT_EQ(seen.events[0].code, 79u);
  EXPECT_EQ(seen.events[1].code, 31u);
  EXPECT_EQ(seen.events[1].count, 7u);
  EXPECT_EQ(Look(0).condition.events_total, 0u);
}

TEST_F(DeviceMonitorClientTest, LinkHoldsUntilReportedLost) {
  const auto island = [&] {
    return broker_.Read([](const core::Core& core) { return core.ListIslands()[1].island; });
  };
  ASSERT_TRUE(
      SendStruct(socket_.get(), monitor::Survey{.device = 1, .taken_ns = Now(), .nvlink_peers = 1, .known_peers = 1})
          .ok());
  ASSERT_TRUE(Eventually([&] { return island() == 0; }));
  ASSERT_TRUE(SendStruct(socket_.get(), monitor::Survey{.device = 1, .taken_ns = Now()}).ok());
  ASSERT_TRUE(Eventually([&] { return Look(1).condition.peers.known == 0; }));
  EXPECT_EQ(Look(1).condition.peers.nvlink, 0u);
  // Sent after the report, and so received after it.
  ASSERT_TRUE(SendStruct(socket_.get(), monitor::Survey{.device = 0, .taken_ns = Now()}).ok());
  ASSERT_TRUE(Eventually([&] { return Look(0).condition.read_at.has_value(); }));
  EXPECT_EQ(island(), 0u) << "the driver has not said that it is gone";
  ASSERT_TRUE(SendStruct(socket_.get(), monitor::Survey{.device = 1, .taken_ns = Now(), .known_peers = 1}).ok());
  EXPECT_TRUE(Eventually([&] { return island() == 1; }));
}

TEST_F(DeviceMonitorClientTest, ReadingReachesCore) {
  monitor::Reading reading = {.count = 1, .taken_ns = Now(), .total = 100, .free = 40, .device = 1};
  reading.processes[0] = {.pid = 7, .bytes = 60};
  strcpy(reading.processes[0].name, "train");
  ASSERT_EQ(::send(socket_.get(), &reading, monitor::Reading::BytesOf(1), 0),
            static_cast<ssize_t>(monitor::Reading::BytesOf(1)));
  ASSERT_TRUE(Eventually([&] { return View(1).reading.has_value(); }));
  EXPECT_EQ(View(1).reading->free, Bytes(40));
  EXPECT_FALSE(View(0).reading.has_value());
}

TEST_F(DeviceMonitorClientTest, LostDeviceIsTakenOutOfService) {
  monitor::Survey survey = {.device = 0, .taken_ns = Now(), .health = monitor::Health::kLost};
  strcpy(survey.trouble, "Xid 79");
  ASSERT_TRUE(SendStruct(socket_.get(), survey).ok());
  EXPECT_TRUE(Eventually([&] { return sink_.last_command == static_cast<int>(WorkerCommand::kLose); }));
  EXPECT_EQ(View(0).state, core::DeviceState::kStopped);
  EXPECT_EQ(View(0).last_failure, "Xid 79");
}

TEST_F(DeviceMonitorClientTest, InvalidMonitorIsReplacedByNext) {
  ASSERT_TRUE(SendStruct(socket_.get(), uint64_t{12345}).ok());
  // The client closes its end.
  EXPECT_TRUE(Eventually([&] { return !SendStruct(socket_.get(), uint32_t{0}).ok(); }));
  socket_ = Connect();
  // The client ignores an unknown device.
  ASSERT_TRUE(SendStruct(socket_.get(), monitor::Survey{.device = 63, .taken_ns = Now()}).ok());
  ASSERT_TRUE(SendStruct(socket_.get(), monitor::Survey{.device = 0, .taken_ns = Now()}).ok());
  EXPECT_TRUE(Eventually([&] { return Look(0).condition.read_at.has_value(); }));
  socket_.reset();
  socket_ = Connect();
  ASSERT_TRUE(SendStruct(socket_.get(), monitor::Survey{.device = 1, .taken_ns = Now()}).ok());
  EXPECT_TRUE(Eventually([&] { return Look(1).condition.read_at.has_value(); }));
}

}  // namespace
}  // namespace berth
