#include "daemon/device/monitor/monitor.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/os/fd_passing.h"
#include "common/os/memfd.h"
#include "common/os/unique_fd.h"
#include "daemon/device/monitor/event_log.h"
#include "gtest/gtest.h"

namespace berth {
namespace {

class MonitorTest : public ::testing::Test {
 protected:
  ~MonitorTest() override { ::unlink(path_.c_str()); }
  void Write(const std::string& text) const {
    // Replaced atomically: the monitor may read at any time.
    std::ofstream(path_ + ".next") << text;
    ASSERT_EQ(::rename((path_ + ".next").c_str(), path_.c_str()), 0);
  }
  const std::string path_ = absl::StrCat(::testing::TempDir(), "/monitor-", ::getpid(), ".toml");
};

TEST_F(MonitorTest, ScriptedMeterReportsScriptedValues) {
  Write(absl::StrCat("[[device]]\nmemory = \"1000\"\nfree_bytes = \"400\"\nutilisation = 35\n",
                     "temperature = 50\nslowdown_temperature = 87\npower = \"not supported\"\n",
                     "processes = [{pid = ", ::getpid(),
                     ", bytes = \"500\"}, {pid = 2147483647, bytes = \"20\"}]\n", "[[device]]\n"));
  const auto meter = NewScriptedMeter(path_, 0, Bytes(), ::getppid());
  const absl::StatusOr<monitor::Reading> reading = meter->Read();
  ASSERT_TRUE(reading.ok()) << reading.status();
  EXPECT_EQ(reading->total, 1000u);
  EXPECT_EQ(reading->free, 400u);
  EXPECT_EQ(reading->utilisation, 35);
  ASSERT_EQ(reading->count, 2u);
  EXPECT_EQ(reading->processes[0].pid, ::getpid());
  EXPECT_EQ(reading->processes[0].bytes, 500u);
  EXPECT_EQ(reading->processes[0].uid, ::getuid());
  EXPECT_EQ(reading->processes[0].ancestors[0], ::getppid());
  EXPECT_EQ(reading->processes[0].daemon, 1u) << "a child of the daemon's";
  EXPECT_STRNE(reading->processes[0].name, "");
  EXPECT_EQ(reading->processes[1].ancestors[0], 0) << "one that is gone has none";
  EXPECT_GT(reading->taken_ns, 0);
  const monitor::Survey survey = meter->Survey();
  EXPECT_EQ(survey.health, monitor::Health::kAnswers);
  EXPECT_EQ(survey.metrics[DeviceMetric::kTemperature], Known(50));
  EXPECT_EQ(survey.metrics[DeviceMetric::kPower], Absent(MetricAbsence::kNotSupported));
  EXPECT_EQ(survey.metrics[DeviceMetric::kClock].absence, MetricAbsence::kNotRead);
  EXPECT_FALSE(NewScriptedMeter(path_, 1, Bytes(), 0)->Read().ok()) << "it does not say what is free";
  EXPECT_EQ(NewScriptedMeter(path_, 2, Bytes(), 0)->Survey().health, monitor::Health::kDegraded);
  EXPECT_FALSE(NewScriptedMeter(path_ + "-none", 0, Bytes(), 0)->Read().ok());
}

TEST_F(MonitorTest, ExcessProcessesAreSummed) {
  std::string text = "[[device]]\nmemory = \"1000\"\nfree_bytes = \"400\"\nprocesses = [";
  for (int i = 0; i < 50; ++i) absl::StrAppend(&text, "{pid = ", 2'000'000'000 + i, ", bytes = \"3\"},");
  Write(text + "]\n");
  const absl::StatusOr<monitor::Reading> reading = NewScriptedMeter(path_, 0, Bytes(), 0)->Read();
  ASSERT_TRUE(reading.ok()) << reading.status();
  EXPECT_EQ(reading->count, monitor::Reading::kMaxProcesses);
  EXPECT_EQ(reading->rest, (50 - monitor::Reading::kMaxProcesses) * 3u);
}

TEST_F(MonitorTest, HeatErrorsAndXidsAreReported) {
  const auto meter = NewScriptedMeter(path_, 0, Bytes(), 0);
  const auto look = [&](const std::string& now) {
    Write(absl::StrCat("[[device]]\nslowdown_temperature = 87\n[now.0]\n", now));
    return meter->Survey();
  };
  EXPECT_EQ(look("temperature = 86").health, monitor::Health::kAnswers);
  const monitor::Survey hot = look("temperature = 87");
  EXPECT_EQ(hot.health, monitor::Health::kDegraded);
  EXPECT_STREQ(hot.trouble, "87 degrees Celsius, throttled from 87");
  EXPECT_STREQ(look("uncorrected_errors = 2").trouble, "2 uncorrected memory errors");
  const monitor::Survey xid = look("xids = [13, 31]");
  EXPECT_EQ(xid.health, monitor::Health::kAnswers) << "a program's own";
  EXPECT_EQ(xid.event_count, 2u);
  EXPECT_EQ(xid.events[0].code, 13u);
  // Ten more events: only the latest are listed, but all are counted.
  const monitor::Survey many = look("xids = [13, 31, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]");
  EXPECT_EQ(many.events_total, 12u);
  ASSERT_EQ(many.event_count, monitor::Survey::kMaxEvents);
  EXPECT_EQ(many.events[0].code, 3u);
  EXPECT_EQ(many.health, monitor::Health::kDegraded);
  EXPECT_STREQ(many.trouble, "Xid 10");
  EXPECT_EQ(look("lost = true").health, monitor::Health::kLost);
  const monitor::Survey fallen = look("xids = [13, 31, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 79]");
  EXPECT_EQ(fallen.health, monitor::Health::kLost);
  EXPECT_STREQ(fallen.trouble, "Xid 79: the device has fallen off the bus");
  EXPECT_EQ(fallen.metrics[DeviceMetric::kTemperature].absence, MetricAbsence::kLost);
}

TEST_F(MonitorTest, RisingErrorCounterIsEventWithCount) {
  const auto meter = NewScriptedMeter(path_, 0, Bytes(), 0);
  const auto look = [&](const std::string& now) {
    Write(absl::StrCat("[[device]]\n[now.0]\n", now));
    return meter->Survey();
  };
  EXPECT_EQ(look("uncorrected_errors = 1").events_total, 0u);
  const monitor::Survey risen = look("uncorrected_errors = 4");
  EXPECT_EQ(risen.events_total, 3u);
  ASSERT_EQ(risen.event_count, 1u);
  EXPECT_EQ(risen.events[0].kind, DeviceEventKind::kUncorrectedEcc);
  EXPECT_EQ(risen.events[0].count, 3u);
  EXPECT_EQ(risen.events[0].heard_ns, risen.taken_ns);
  EXPECT_EQ(look("uncorrected_errors = 4").events_total, 3u);
}

TEST_F(MonitorTest, OnlyDeviceXidsDegradeIt) {
  monitor::Survey survey;
  EventLog events;
  const auto judge = [&](uint64_t forgiven = 0) {
    events.CopyTo(&survey);
    JudgeHealth(forgiven, &survey);
    return std::string(survey.trouble);
  };
  // An exception of the engine, a page fault, a stopped channel, its cleanup, an exception of the decoder.
  for (const uint64_t code : {13, 31, 43, 45, 68}) events.Add(DeviceEventKind::kXid, code, 1);
  EXPECT_EQ(judge(), "");
  EXPECT_EQ(survey.health, monitor::Health::kAnswers);
  EXPECT_EQ(survey.event_count, 5u) << "they are told all the same";
  // Errors of the device itself: uncorrectable memory, a link, the GPU's own processor.
  for (const uint64_t code : {48, 74, 119}) {
    events.Add(DeviceEventKind::kXid, code, 1);
    EXPECT_EQ(judge(), "Xid " + std::to_string(code));
    EXPECT_EQ(survey.health, monitor::Health::kDegraded);
  }
  events.Add(DeviceEventKind::kXid, 31, 1);
  EXPECT_EQ(judge(), "Xid 119") << "a program's error mends nothing";
  EXPECT_EQ(judge(events.total()), "") << "nor does one count that was before a self-test";
  events.Add(DeviceEventKind::kXid, 95, 1);
  EXPECT_EQ(judge(events.total() - 1), "Xid 95");
}

TEST_F(MonitorTest, UnansweringDeviceIsDegradedWithReason) {
  monitor::Survey survey;
  const auto judge = [&] {
    JudgeHealth(/*forgiven=*/0, &survey);
    return std::string(survey.trouble);
  };
  EXPECT_EQ(judge(), "") << "nobody has asked";
  EXPECT_EQ(survey.health, monitor::Health::kAnswers);
  for (MetricValue& metric : survey.metrics.values) metric = Absent(MetricAbsence::kFailed, 999);
  survey.metrics[DeviceMetric::kNvlinks] = Absent(MetricAbsence::kNotSupported);
  EXPECT_EQ(judge(), "the driver reports no metric: the driver answered with code 999");
  EXPECT_EQ(survey.health, monitor::Health::kDegraded);
  survey.metrics[DeviceMetric::kClock] = Known(1980);
  EXPECT_EQ(judge(), "") << "one metric is an answer";
  EXPECT_EQ(survey.health, monitor::Health::kAnswers);
  for (MetricValue& metric : survey.metrics.values) metric = Absent(MetricAbsence::kNotSupported);
  EXPECT_EQ(judge(), "") << "that is an answer, too";
}

// Starts a monitor of `count` scripted devices. Returns its pid; sets `*socket` to the broker's end.
pid_t Start(const std::string& path, uint32_t count, UniqueFd* socket) {
  auto sockets = SocketPair();
  EXPECT_TRUE(sockets.ok());
  absl::StatusOr<UniqueFd> table = CreateMemfd("test", 0);
  EXPECT_TRUE(table.ok());
  for (uint32_t i = 0; i < count; ++i) {
    const DeviceRecord record = {.ordinal = i};
    EXPECT_EQ(::write(table->get(), &record, sizeof(record)), static_cast<ssize_t>(sizeof(record)));
  }
  EXPECT_TRUE(SendDevices(sockets->first.get(), table->get(), count).ok());
  const pid_t pid = ::fork();
  if (pid == 0) {
    sockets->first.reset();
    const absl::Status served =
        ServeMonitor(sockets->second.get(), [&](const std::vector<DeviceRecord>& records, size_t index) {
          return NewScriptedMeter(path, records[index].ordinal, Bytes(), 0);
        });
    ::_exit(served.ok() ? 0 : 1);
  }
  *socket = std::move(sockets->first);
  return pid;
}

// Returns the device of the next survey.
uint32_t NextSurveyed(int socket) {
  while (true) {
    const absl::StatusOr<Message> message = ReceiveMessage(socket);
    if (!message.ok()) ADD_FAILURE() << message.status();
    if (!message.ok()) return UINT32_MAX;
    if (message->bytes.size() != sizeof(monitor::Survey)) continue;
    monitor::Survey survey;
    memcpy(&survey, message->bytes.data(), sizeof(survey));
    return survey.device;
  }
}

TEST_F(MonitorTest, HungDeviceDelaysNoOthers) {
  Write("refresh = \"5ms\"\n[[device]]\ncount = 3\nfree_bytes = \"1\"\n[now.1]\nhangs = true\n");
  UniqueFd socket;
  const pid_t pid = Start(path_, 3, &socket);
  std::map<uint32_t, int> surveys;
  while (surveys[0] < 3 || surveys[2] < 3) ++surveys[NextSurveyed(socket.get())];
  EXPECT_EQ(surveys[1], 0);
  // The monitor ends when its other end hangs up, even if a device hangs.
  socket.reset();
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
}

TEST_F(MonitorTest, FirstMessageMustBeDevices) {
  auto sockets = SocketPair();
  ASSERT_TRUE(sockets.ok());
  const MeterMaker none = [](const std::vector<DeviceRecord>&, size_t) { return nullptr; };
  ASSERT_TRUE(SendStruct(sockets->first.get(), monitor::Devices{.count = 1}).ok());
  EXPECT_TRUE(absl::IsInternal(ServeMonitor(sockets->second.get(), none)));
  const absl::StatusOr<UniqueFd> table = CreateMemfd("test", 0);
  ASSERT_TRUE(SendDevices(sockets->first.get(), table->get(), 1).ok());
  EXPECT_TRUE(absl::IsInternal(ServeMonitor(sockets->second.get(), none))) << "an empty table";
}

}  // namespace
}  // namespace berth
