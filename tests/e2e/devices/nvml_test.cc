// A whole daemon over a scripted driver (tests/support/driver/driver_script.h), without a GPU. NVML's reports reach
// observers, and the fate of devices reaches their users.

#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <berth/bytes.h>
#include <berth/error.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/inventory.pb.h"
#include "berth/v1/resources.pb.h"
#include "client/sdk/admin/inspector.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/driver/driver_script.h"
#include "tests/support/proc.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

// Patience for the driver, in seconds: a survey per step, and its consequences.
constexpr absl::Duration kLong = absl::Minutes(2);

class NvmlTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!DriverScript::IsOfUse()) GTEST_SKIP() << "built without CUDA's headers";
  }

  // These tests do not check how long a daemon takes to stop.
  void TearDown() override {
    if (daemon_ != nullptr) daemon_->KillSupervisorAndBroker();
  }

  // Creates a script of `devices` devices with the default values.
  void Script(int devices) { driver_ = std::make_unique<DriverScript>(devices); }
  void Start(const std::vector<std::string>& changes = {}) {
    std::vector<std::string> environment = driver_->environment();
    environment.insert(environment.end(), changes.begin(), changes.end());
    daemon_ = std::make_unique<TestDaemon>(
        TestDaemonOptions{.environment = std::move(environment), .backend = "cuda"});
  }
  void StartWith(int devices) {
    Script(devices);
    Start();
  }

  v1::DeviceInventory Look(int index) {
    return Must(daemon_->inspector().ListInventory(), "inventory").devices(index);
  }
  v1::Condition ConditionOf(int index) { return Look(index).condition(); }
  v1::Device DeviceOf(int index) { return Look(index).device(); }
  v1::Topology::Reach ReachOf(int from, int to) {
    return static_cast<v1::Topology::Reach>(Must(daemon_->inspector().GetTopology()).rows(from).reaches(to));
  }
  bool Becomes(int index, v1::Device::State state) {
    return Eventually([&] { return DeviceOf(index).state() == state; }, kLong);
  }
  bool Becomes(int index, v1::Condition::Health health) {
    return Eventually([&] { return ConditionOf(index).health() == health; }, kLong);
  }
  // Waits until the daemon has received a survey that began after the script's last change. The daemon's times are off
  // by what it takes to read two clocks.
  void AwaitSurveys(int devices) {
    for (int i = 0; i < devices; ++i) {
      const absl::Time now = absl::Now();
      ASSERT_TRUE(Eventually(
          [&] {
            const v1::Condition condition = ConditionOf(i);
            return condition.has_read_time() &&
                   absl::FromUnixSeconds(condition.read_time().seconds()) +
                           absl::Nanoseconds(condition.read_time().nanos()) >
                       now + absl::Milliseconds(10);
          },
          kLong));
    }
  }
  pid_t ChildOf(const std::string& name) {
    for (const ChildInfo& child : ChildrenOf(daemon_->supervisor().pid())) {
      if (child.name == name) return child.pid;
    }
    return 0;
  }

  std::unique_ptr<DriverScript> driver_;
  std::unique_ptr<TestDaemon> daemon_;
};

// ---- Reported values ----------------------------------------------------------------------------------------

TEST_F(NvmlTest, ReadingsFollowUuidNotCudaOrder) {
  Script(2);
  driver_->SetAll({{"cuda", "1 0"}, {"0.processes", absl::StrCat(::getpid(), ":1048576")}, {"0.free", "536870912"}});
  Start();
  ASSERT_TRUE(Becomes(0, v1::Condition::ANSWERS));
  ASSERT_TRUE(Becomes(1, v1::Condition::ANSWERS));
  const v1::DeviceInventory seen = Look(0);
  EXPECT_EQ(seen.device().uuid(), DriverScript::UuidOf(0));
  EXPECT_EQ(seen.hardware().pci_id(), "00000000:01:00.0");
  EXPECT_EQ(seen.hardware().compute_capability(), 90u);
  EXPECT_EQ(seen.hardware().multiprocessors(), 132u);
  EXPECT_EQ(seen.condition().temperature().value(), 40u);
  EXPECT_EQ(seen.condition().power_limit().value(), 700'000u);
  EXPECT_EQ(seen.condition().memory_clock().value(), 3'201u);
  EXPECT_EQ(seen.condition().free_bytes().value(), MiB(512).count());
  EXPECT_EQ(seen.condition().total_bytes().value(), GiB(1).count());
  EXPECT_EQ(seen.condition().ecc_mode().value(), 1u);
  EXPECT_EQ(seen.condition().nvlinks().value(), 18u);
  EXPECT_EQ(Look(1).device().uuid(), DriverScript::UuidOf(1));
  EXPECT_EQ(Look(1).condition().temperature().value(), 41u);
  EXPECT_EQ(driver_->counts().contexts, 0u) << "looking costs no context";
}

TEST_F(NvmlTest, MissingReadingHasReasonAndNoOldValue) {
  Script(2);
  driver_->SetAll({{"0.power", "!3"}, {"0.clock", "!4"}, {"0.memory_clock", "!13"}, {"0.utilisation", "!999"}});
  Start();
  ASSERT_TRUE(Eventually([&] { return ConditionOf(0).free_bytes().value() == GiB(1).count(); }, kLong));
  v1::Condition seen = ConditionOf(0);
  EXPECT_EQ(seen.power().absent(), "not supported by the device");
  EXPECT_EQ(seen.clock().absent(), "not permitted to the daemon");
  EXPECT_EQ(seen.memory_clock().absent(), "not known to this version of the driver");
  EXPECT_EQ(seen.utilisation().absent(), "the driver answered with code 999");
  EXPECT_EQ(seen.temperature().value(), 40u);
  EXPECT_EQ(seen.health(), v1::Condition::ANSWERS) << "a missing metric is no failure";
  // An earlier value of the free memory does not stand for the current one.
  driver_->SetAll({{"0.total", "!999"}, {"0.temperature", "50"}});
  ASSERT_TRUE(Eventually([&] { return ConditionOf(0).temperature().value() == 50; }, kLong));
  AwaitSurveys(1);
  seen = ConditionOf(0);
  EXPECT_EQ(seen.free_bytes().absent(), "the driver answered with code 999");
  EXPECT_EQ(seen.total_bytes().absent(), "the driver answered with code 999");
  EXPECT_EQ(ConditionOf(1).free_bytes().value(), GiB(1).count());
  driver_->Set(0, "state", "lost");
  ASSERT_TRUE(Becomes(0, v1::Condition::LOST));
  AwaitSurveys(1);
  EXPECT_EQ(ConditionOf(0).free_bytes().absent(), "the device is lost");
  EXPECT_EQ(ConditionOf(0).temperature().absent(), "the device is lost");
  EXPECT_EQ(ConditionOf(1).health(), v1::Condition::ANSWERS);
}

TEST_F(NvmlTest, UnansweredPeerHidesNoOtherLink) {
  StartWith(3);
  ASSERT_TRUE(Eventually([&] { return ReachOf(0, 1) == v1::Topology::NVLINK; }, kLong));
  driver_->SetAll({{"0.peer.2", "!999"}, {"1.peer.2", "!999"}, {"2.peer.0", "!999"}, {"2.peer.1", "!999"}});
  EXPECT_TRUE(Eventually([&] { return ReachOf(0, 2) == v1::Topology::REACH_UNSPECIFIED; }, kLong));
  EXPECT_EQ(ReachOf(0, 1), v1::Topology::NVLINK);
  EXPECT_EQ(ReachOf(1, 0), v1::Topology::NVLINK);
  const v1::Topology topology = Must(daemon_->inspector().GetTopology());
  for (const v1::Topology::Row& row : topology.rows()) {
    EXPECT_EQ(row.island(), 0u) << "no link has been said to be gone";
  }
  // A device reported as gone is gone.
  driver_->SetAll({{"0.peer.2", "none"}, {"1.peer.2", "pcie"}, {"2.peer.0", "none"}, {"2.peer.1", "pcie"}});
  EXPECT_TRUE(Eventually([&] { return Must(daemon_->inspector().GetTopology()).rows(2).island() == 2; }, kLong));
  EXPECT_TRUE(Eventually([&] { return ReachOf(1, 2) == v1::Topology::PCIE; }, kLong));
  EXPECT_TRUE(Eventually([&] { return ReachOf(0, 2) == v1::Topology::NONE; }, kLong));
  EXPECT_EQ(Must(daemon_->inspector().GetTopology()).rows(1).island(), 0u);
}

TEST_F(NvmlTest, EventsAreReportedAndOnlyDeviceFaultsDegrade) {
  StartWith(2);
  ASSERT_TRUE(Becomes(0, v1::Condition::ANSWERS));
  ASSERT_TRUE(Becomes(1, v1::Condition::ANSWERS));
  driver_->Set(0, "events", "single double xid:31 xid:13 xid:43 xid:45 xid:68");
  ASSERT_TRUE(Eventually([&] { return ConditionOf(0).events_total() == 7; }, kLong));
  v1::Condition seen = ConditionOf(0);
  EXPECT_EQ(seen.events(0).kind(), v1::DeviceEvent::CORRECTED_ECC);
  EXPECT_EQ(seen.events(1).kind(), v1::DeviceEvent::UNCORRECTED_ECC);
  EXPECT_EQ(seen.events(2).kind(), v1::DeviceEvent::XID);
  EXPECT_EQ(seen.events(2).code(), 31u);
  EXPECT_EQ(seen.health(), v1::Condition::ANSWERS) << seen.trouble();
  driver_->Set(0, "events", "single double xid:31 xid:13 xid:43 xid:45 xid:68 xid:74 xid:31");
  ASSERT_TRUE(Becomes(0, v1::Condition::DEGRADED));
  EXPECT_EQ(ConditionOf(0).trouble(), "Xid 74");
  EXPECT_EQ(DeviceOf(0).state(), v1::Device::READY);
  EXPECT_EQ(ConditionOf(1).events_total(), 0u);
  EXPECT_EQ(ConditionOf(1).health(), v1::Condition::ANSWERS);
  driver_->Set(1, "uncorrected_errors", "2");
  ASSERT_TRUE(Becomes(1, v1::Condition::DEGRADED));
  EXPECT_EQ(ConditionOf(1).trouble(), "2 uncorrected memory errors");
}

TEST_F(NvmlTest, InstancesAreListedWithTheirUuids) {
  Script(1);
  driver_->SetAll({{"0.mig_mode", "1"}, {"0.instances", "MIG-a:16:16384 MIG-b:60:81920"}});
  Start();
  ASSERT_TRUE(Eventually([&] { return ConditionOf(0).mig_instances_size() == 2; }, kLong));
  const v1::Condition seen = ConditionOf(0);
  EXPECT_EQ(seen.mig_mode().value(), 1u);
  EXPECT_EQ(seen.mig_instances(0).uuid(), "MIG-a");
  EXPECT_EQ(seen.mig_instances(1).uuid(), "MIG-b");
  EXPECT_EQ(seen.mig_instances(1).multiprocessors(), 60u);
  EXPECT_EQ(seen.mig_instances(1).total_bytes(), GiB(80).count());
}

TEST_F(NvmlTest, InstancesAreDevicesUpToLastOrdinal) {
  const auto uuid_of = [](uint32_t ordinal) {
    return absl::StrFormat("MIG-%08x-1111-2222-3333-444444444444", ordinal);
  };
  Script(65);
  // Device 64 is divided, and CUDA has its instances. Every ninth device serves, among them the last.
  std::map<std::string, std::string> instances = {{"64.mig_mode", "1"}};
  std::string order;
  for (uint32_t i = 0; i < 64; ++i) {
    instances[absl::StrCat(i, ".uuid")] = uuid_of(i);
    instances[absl::StrCat(i, ".parent")] = DriverScript::UuidOf(64);
    if (i % 9 != 0) instances[absl::StrCat(i, ".memory_as_fd")] = "0";
    absl::StrAppend(&order, i, " ");
  }
  instances["cuda"] = order;
  driver_->SetAll(instances);
  Start();
  const v1::ListInventoryResponse inventory = Must(daemon_->inspector().ListInventory());
  ASSERT_EQ(inventory.devices_size(), 8);
  for (const v1::DeviceInventory& seen : inventory.devices()) {
    EXPECT_EQ(seen.device().uuid(), uuid_of(seen.device().ordinal()));
    EXPECT_EQ(seen.hardware().mig_parent(), DriverScript::UuidOf(64));
  }
  EXPECT_EQ(inventory.devices(7).device().ordinal(), 63u);
  Actor actor(*daemon_);
  EXPECT_TRUE(Ok(actor.Ask("allocate b 4096 device=63")));
  actor.Quit();
}

// ---- Devices that do not answer -----------------------------------------------------------------------------

TEST_F(NvmlTest, HungCallDelaysNoOthersAndAgeIsShown) {
  StartWith(3);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Becomes(i, v1::Condition::ANSWERS));
  driver_->Set(1, "hangs", "temperature");
  ASSERT_TRUE(Becomes(1, v1::Condition::SILENT));
  const v1::Condition silent = ConditionOf(1);
  EXPECT_GE(silent.age_ms(), 5'000u);
  EXPECT_EQ(silent.temperature().value(), 41u) << "what was said last";
  EXPECT_EQ(ConditionOf(0).health(), v1::Condition::ANSWERS);
  EXPECT_EQ(ConditionOf(2).health(), v1::Condition::ANSWERS);
  EXPECT_EQ(DeviceOf(1).state(), v1::Device::READY);
  Actor actor(*daemon_);
  EXPECT_TRUE(Ok(actor.Ask("allocate b 4096 device=1"))) << "its worker does not ask the same";
  actor.Quit();
  driver_->Set(1, "hangs", "");
  EXPECT_TRUE(Becomes(1, v1::Condition::ANSWERS));
}

TEST_F(NvmlTest, ReloadedDriverIsReadByNewMonitor) {
  StartWith(2);
  ASSERT_TRUE(Becomes(0, v1::Condition::ANSWERS));
  const pid_t before = ChildOf("berth-monitor");
  ASSERT_NE(before, 0);
  driver_->SetAll({{"driver", "2"}, {"0.temperature", "61"}});
  ASSERT_TRUE(Eventually(
      [&] {
        const pid_t now = ChildOf("berth-monitor");
        return now != 0 && now != before;
      },
      kLong));
  EXPECT_TRUE(Eventually([&] { return ConditionOf(0).temperature().value() == 61; }, kLong));
  EXPECT_EQ(DeviceOf(0).state(), v1::Device::READY);
  EXPECT_EQ(DeviceOf(0).generation(), 1u) << "a library that was replaced loses no memory";
}

TEST_F(NvmlTest, DevicesFailingAtStartAreListedWithReason) {
  Script(5);
  driver_->SetAll({{"1.cuDeviceTotalMem", "!999"},
                   {"2.hangs", "cuDeviceGetName"},
                   {"3.hangs", "pci"},
                   {"4.cuMemGetAllocationGranularity", "!999"}});
  // The start waits until the driver counts as hung.
  Start({"BERTH_TEST_PATIENCE=1"});
  ASSERT_EQ(Must(daemon_->inspector().ListDevices()).devices_size(), 5);
  EXPECT_EQ(DeviceOf(1).state(), v1::Device::STOPPED);
  EXPECT_EQ(DeviceOf(1).uuid(), DriverScript::UuidOf(1));
  EXPECT_EQ(DeviceOf(1).last_failure(),
            "the device failed at the daemon's start: cuDeviceTotalMem: CUDA_ERROR_UNKNOWN (999)");
  EXPECT_EQ(DeviceOf(2).state(), v1::Device::STOPPED);
  EXPECT_EQ(DeviceOf(2).last_failure(), "the device failed at the daemon's start: the driver did not answer in 3 s");
  EXPECT_TRUE(Becomes(0, v1::Device::READY));
  EXPECT_TRUE(Becomes(3, v1::Device::READY)) << "NVML alone hangs for it";
  Actor actor(*daemon_);
  EXPECT_TRUE(Ok(actor.Ask("allocate a 4096 device=3")));
  EXPECT_TRUE(Refused(actor.Ask("allocate b 4096 device=1"), Reason::kDeviceStopped));
  // A device with all required facts known may be enabled; the others need another start of the daemon.
  driver_->SetAll({{"1.cuDeviceTotalMem", ""}, {"4.cuMemGetAllocationGranularity", ""}});
  EXPECT_TRUE(Ok(daemon_->inspector().EnableDevice(4)));
  EXPECT_TRUE(Becomes(4, v1::Device::READY));
  EXPECT_TRUE(Ok(actor.Ask("allocate b 4096 device=4")));
  EXPECT_TRUE(Ok(daemon_->inspector().EnableDevice(1)));
  EXPECT_TRUE(Eventually(
      [&] {
        return DeviceOf(1).state() == v1::Device::STOPPED &&
               DeviceOf(1).last_failure() ==
                   "the self-test failed: the device could not be read at the daemon's start: restart the daemon";
      },
      kLong));
  actor.Quit();
}

TEST_F(NvmlTest, DevicesAreServedDespiteOrdinalGaps) {
  Script(6);
  driver_->SetAll({{"1.memory_as_fd", "0"}, {"2.memory_as_fd", "0"}, {"4.memory_as_fd", "0"}});
  Start();
  const v1::ListDevicesResponse devices = Must(daemon_->inspector().ListDevices());
  ASSERT_EQ(devices.devices_size(), 3);
  for (const int ordinal : {0, 3, 5}) {
    const int index = ordinal == 0 ? 0 : ordinal == 3 ? 1 : 2;
    EXPECT_EQ(devices.devices(index).ordinal(), static_cast<uint32_t>(ordinal));
    EXPECT_EQ(devices.devices(index).uuid(), DriverScript::UuidOf(ordinal));
    ASSERT_TRUE(Becomes(index, v1::Condition::ANSWERS));
    EXPECT_EQ(ConditionOf(index).temperature().value(), 40u + static_cast<uint32_t>(ordinal));
  }
  const v1::Topology topology = Must(daemon_->inspector().GetTopology());
  ASSERT_EQ(topology.rows_size(), 3);
  EXPECT_EQ(topology.rows(2).device(), 5u);
  EXPECT_EQ(topology.rows(2).reaches(1), v1::Topology::NVLINK);
  EXPECT_EQ(topology.rows(2).island(), 0u);
  Actor actor(*daemon_);
  EXPECT_TRUE(Ok(actor.Ask("allocate a 4096 device=5")));
  EXPECT_TRUE(Ok(actor.Ask("allocate b 4096 device=3")));
  EXPECT_TRUE(Refused(actor.Ask("allocate c 4096 device=4"), Reason::kNotFound));
  actor.Quit();
}

// ---- Devices that are lost ----------------------------------------------------------------------------------

TEST_F(NvmlTest, LostDeviceIsReportedAndReturnsAfterSelfTest) {
  StartWith(2);
  ASSERT_TRUE(Becomes(0, v1::Condition::ANSWERS));
  ASSERT_TRUE(Becomes(1, v1::Condition::ANSWERS));
  int step = 0;
  const absl::Status watched = daemon_->inspector().WatchDevices([&](const v1::WatchDevicesResponse& answer) {
    const v1::Device& device = answer.devices(0);
    if (step == 0) {
      driver_->Set(0, "state", "lost");
    } else if (step == 1 && device.state() == v1::Device::STOPPED && device.generation() == 2) {
      EXPECT_EQ(device.last_failure(), "the driver reports the device as lost");
      driver_->Set(0, "state", "");
    } else {
      return step < 2 || device.state() != v1::Device::READY;
    }
    ++step;
    return true;
  });
  EXPECT_TRUE(Ok(watched));
  EXPECT_EQ(DeviceOf(0).generation(), 2u);
  EXPECT_EQ(driver_->counts().contexts, 1u) << "the self-test's";
  EXPECT_EQ(DeviceOf(1).generation(), 1u);
  // Reports about the device's earlier generation do not count for this one.
  driver_->Set(0, "events", "xid:79");
  ASSERT_TRUE(Eventually([&] { return DeviceOf(0).generation() == 3; }, kLong));
  ASSERT_TRUE(Becomes(0, v1::Device::READY));
  EXPECT_TRUE(Becomes(0, v1::Condition::ANSWERS));
  // The monitor registers anew for its events each time, exactly once.
  EXPECT_TRUE(Eventually([&] { return driver_->counts().event_sets == 2; }, kLong)) << driver_->counts().event_sets;
}

TEST_F(NvmlTest, DeviceNeedingResetIsLostUntilReset) {
  StartWith(2);
  ASSERT_TRUE(Becomes(0, v1::Condition::ANSWERS));
  Actor actor(*daemon_);
  driver_->Set(0, "state", "!16");
  ASSERT_TRUE(Becomes(0, v1::Device::STOPPED));
  EXPECT_EQ(DeviceOf(0).last_failure(), "the driver reports that the device needs a reset");
  ASSERT_TRUE(Eventually([&] { return DeviceOf(0).generation() == 2; }, kLong));
  EXPECT_TRUE(Refused(actor.Ask("allocate a 4096 device=0"), Reason::kDeviceStopped));
  // A new survey does not find it either.
  AwaitSurveys(1);
  const v1::Condition seen = ConditionOf(0);
  EXPECT_EQ(seen.health(), v1::Condition::LOST);
  EXPECT_EQ(seen.trouble(), "nvmlDeviceGetHandleByUUID: GPU requires reset (16)");
  EXPECT_EQ(seen.temperature().absent(), "the device has to be reset");
  EXPECT_EQ(seen.free_bytes().absent(), "the device has to be reset");
  EXPECT_EQ(DeviceOf(0).generation(), 2u) << "it is lost once";
  EXPECT_EQ(ConditionOf(1).health(), v1::Condition::ANSWERS);
  driver_->Set(0, "state", "");
  ASSERT_TRUE(Becomes(0, v1::Device::READY));
  EXPECT_TRUE(Becomes(0, v1::Condition::ANSWERS));
  EXPECT_EQ(driver_->counts().contexts, 1u) << "the self-test's";
  EXPECT_TRUE(Ok(actor.Ask("allocate b 4096 device=0")));
  actor.Quit();
}

TEST_F(NvmlTest, UnansweringDeviceIsDegradedAndServes) {
  StartWith(2);
  ASSERT_TRUE(Becomes(0, v1::Condition::ANSWERS));
  driver_->Set(0, "state", "!999");
  ASSERT_TRUE(Becomes(0, v1::Condition::DEGRADED));
  const v1::Condition seen = ConditionOf(0);
  EXPECT_EQ(seen.trouble(), "the driver reports no metric: the driver answered with code 999");
  EXPECT_EQ(seen.temperature().absent(), "the driver answered with code 999");
  EXPECT_EQ(DeviceOf(0).state(), v1::Device::READY) << "its worker does not ask the same";
  EXPECT_EQ(ConditionOf(1).health(), v1::Condition::ANSWERS);
  driver_->Set(0, "state", "");
  EXPECT_TRUE(Becomes(0, v1::Condition::ANSWERS));
  EXPECT_EQ(DeviceOf(0).generation(), 1u);
}

TEST_F(NvmlTest, WatcherReceivesXidsAndMemoryErrors) {
  StartWith(2);
  ASSERT_TRUE(Becomes(0, v1::Condition::ANSWERS));
  ASSERT_TRUE(Becomes(1, v1::Condition::ANSWERS));
  const absl::Time begin = absl::Now();
  int step = 0;
  v1::WatchDevicesResponse last;
  const absl::Status watched = daemon_->inspector().WatchDevices([&](const v1::WatchDevicesResponse& answer) {
    last = answer;
    if (step == 0) {
      EXPECT_EQ(answer.reports_size(), 0);
      driver_->Set(1, "events", "xid:74 xid:31 xid:31");
    } else if (step == 1 && answer.reports_size() == 1 && answer.reports(0).events_total() == 3) {
      // No event of the driver reports it; only the counter does.
      driver_->Set(0, "uncorrected_errors", "2");
    } else {
      return answer.reports_size() < 2;
    }
    ++step;
    return true;
  });
  EXPECT_TRUE(Ok(watched));
  ASSERT_EQ(last.reports_size(), 2);
  const v1::DeviceReports& errors = last.reports(0);
  EXPECT_EQ(errors.device(), 0u);
  EXPECT_EQ(errors.uuid(), DriverScript::UuidOf(0));
  ASSERT_EQ(errors.events_size(), 1);
  EXPECT_EQ(errors.events(0).kind(), v1::DeviceEvent::UNCORRECTED_ECC);
  EXPECT_EQ(errors.events(0).count(), 2u);
  const v1::DeviceReports& xids = last.reports(1);
  EXPECT_EQ(xids.uuid(), DriverScript::UuidOf(1));
  ASSERT_EQ(xids.events_size(), 2);
  EXPECT_EQ(xids.events(0).code(), 74u);
  EXPECT_EQ(xids.events(0).count(), 1u);
  EXPECT_EQ(xids.events(1).kind(), v1::DeviceEvent::XID);
  EXPECT_EQ(xids.events(1).code(), 31u);
  EXPECT_EQ(xids.events(1).count(), 2u);
  for (const v1::DeviceEvent& event : {errors.events(0), xids.events(0), xids.events(1)}) {
    EXPECT_GE(event.time().seconds(), absl::ToUnixSeconds(begin) - 1);
    EXPECT_LE(event.time().seconds(), absl::ToUnixSeconds(absl::Now()) + 1);
  }
}

TEST_F(NvmlTest, LossSeenByWorkerFirstCountsOnce) {
  StartWith(2);
  ASSERT_TRUE(Becomes(0, v1::Condition::ANSWERS));
  // NVML does not answer yet, and a new process would not find the device.
  driver_->SetAll({{"0.hangs", "temperature"}, {"0.cuMemCreate", "!214"}});
  Actor actor(*daemon_);
  EXPECT_FALSE(Ok(actor.Ask("allocate a 4096 device=0")));
  driver_->Set(0, "state", "gone");
  ASSERT_TRUE(Becomes(0, v1::Device::STOPPED));
  EXPECT_EQ(DeviceOf(0).last_failure(), "the driver reports the device as lost");
  // The report of the loss may precede that of the worker's end.
  EXPECT_TRUE(Eventually([&] { return DeviceOf(0).generation() == 2; }));
  // NVML then reports the same loss; it counts once.
  driver_->Set(0, "hangs", "");
  ASSERT_TRUE(Becomes(0, v1::Condition::LOST));
  AwaitSurveys(1);
  EXPECT_EQ(DeviceOf(0).state(), v1::Device::STOPPED) << "not dropped: it may come back";
  EXPECT_EQ(DeviceOf(0).generation(), 2u);
  EXPECT_TRUE(Ok(actor.Ask("allocate a 4096 device=1")));
  driver_->SetAll({{"0.cuMemCreate", ""}, {"0.state", ""}});
  ASSERT_TRUE(Becomes(0, v1::Device::READY));
  EXPECT_TRUE(Ok(actor.Ask("allocate b 4096 device=0")));
  EXPECT_EQ(DeviceOf(0).generation(), 2u);
  actor.Quit();
}

TEST_F(NvmlTest, RenumberedDeviceIsNotMistakenForEarlier) {
  StartWith(2);
  ASSERT_TRUE(Becomes(0, v1::Device::READY));
  // The device is now CUDA's second. The first has no memory.
  driver_->SetAll({{"0.pci", "00000000:09:00.0"}, {"1.cuMemCreate", "!2"}});
  const pid_t worker = ChildOf("berth-worker0");
  ASSERT_NE(worker, 0);
  ASSERT_EQ(::kill(worker, SIGKILL), 0);
  const auto restarted = [&] {
    const pid_t now = ChildOf("berth-worker0");
    return now != 0 && now != worker;
  };
  ASSERT_TRUE(Eventually(restarted));
  ASSERT_TRUE(Becomes(0, v1::Device::READY));
  Actor actor(*daemon_);
  EXPECT_TRUE(Ok(actor.Ask("allocate a 4096 device=0")));
  EXPECT_FALSE(Ok(actor.Ask("allocate b 4096 device=1")));
  actor.Quit();
  // CUDA lists the other device alone.
  driver_->Set("cuda", "1");
  ASSERT_EQ(::kill(ChildOf("berth-worker0"), SIGKILL), 0);
  ASSERT_TRUE(Becomes(0, v1::Device::STOPPED));
  EXPECT_TRUE(absl::StrContains(DeviceOf(0).last_failure(), "does not list this device"));
  EXPECT_TRUE(Ok(daemon_->inspector().EnableDevice(0)));
  EXPECT_TRUE(Eventually(
      [&] {
        return DeviceOf(0).state() == v1::Device::STOPPED &&
               DeviceOf(0).last_failure() == absl::StrCat("the self-test failed: no device ", DriverScript::UuidOf(0),
                                                          " among the devices that CUDA lists: 1");
      },
      kLong));
  driver_->Set("cuda", "");
  EXPECT_TRUE(Ok(daemon_->inspector().EnableDevice(0)));
  EXPECT_TRUE(Becomes(0, v1::Device::READY));
}

// ---- Clients ------------------------------------------------------------------------------------------------

TEST_F(NvmlTest, DriverIsInitialisedOnceForAllThreads) {
  StartWith(2);
  ASSERT_TRUE(Becomes(0, v1::Device::READY));
  // As long as every thread takes to call.
  driver_->Set("init_ms", "500");
  const uint64_t before = driver_->counts().cuda_inits;
  std::vector<std::string> environment = driver_->environment();
  environment.push_back(absl::StrCat("BERTH_FOLDER=", daemon_->folder()));
  Subprocess prober = Subprocess::Start(
      {.argv = {ProgramPath("tests/support/actor/label_prober"), "bms_flex", "survival_flex",
                "cubic_bspline_moments", "cubic_cell", "pirls_row", "sphere"},
       .environment = environment});
  for (int i = 0; i < 6; ++i) {
    const std::string found = Must(prober.ReadLine(kLong));
    EXPECT_TRUE(found == DriverScript::UuidOf(0) || found == DriverScript::UuidOf(1)) << found;
  }
  EXPECT_EQ(prober.Wait(), 0);
  EXPECT_EQ(driver_->counts().cuda_inits, before + 1);
}

}  // namespace
}  // namespace berth::testing
