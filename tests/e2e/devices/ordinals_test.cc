// The ordinals of GPUs, from the driver to the command, over a scripted driver (tests/support/driver/driver_script.h).
// CUDA lists the devices fastest first, and this order differs from the order of their PCI ids.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <berth/error.h>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "berth/v1/device.pb.h"
#include "berth/v1/resources.pb.h"
#include "client/sdk/admin/inspector.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/driver/driver_script.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

// Patience for the driver.
constexpr absl::Duration kLong = absl::Minutes(2);

class OrdinalsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!DriverScript::IsOfUse()) GTEST_SKIP() << "built without CUDA's headers";
  }
  // These tests do not check how long a daemon takes to stop.
  void TearDown() override {
    if (daemon_ != nullptr) daemon_->KillSupervisorAndBroker();
  }

  // Starts a daemon on a node of four devices, with `changes` of its environment.
  void Start(const std::vector<std::string>& changes) {
    std::vector<std::string> environment = driver_.environment();
    environment.insert(environment.end(), {"CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"});
    environment.insert(environment.end(), changes.begin(), changes.end());
    daemon_ = std::make_unique<TestDaemon>(
        TestDaemonOptions{.environment = std::move(environment), .backend = "cuda"});
  }

  v1::Device DeviceOf(uint32_t ordinal) {
    const v1::ListDevicesResponse devices = Must(daemon_->inspector().ListDevices());
    for (const v1::Device& device : devices.devices()) {
      if (device.ordinal() == ordinal) return device;
    }
    return {};
  }
  bool Becomes(uint32_t ordinal, v1::Device::State state) {
    return Eventually([&] { return DeviceOf(ordinal).state() == state; }, kLong);
  }
  // Returns "ORDINAL UUID" of each device, in the daemon's order.
  std::vector<std::string> Listed() {
    std::vector<std::string> listed;
    const v1::ListDevicesResponse devices = Must(daemon_->inspector().ListDevices());
    for (const v1::Device& device : devices.devices()) {
      listed.push_back(absl::StrCat(device.ordinal(), " ", device.uuid()));
    }
    return listed;
  }

  // Runs `berth run OPTIONS -- COMMAND` with CUDA_VISIBLE_DEVICES=`visible` ("unset" for none). The command prints
  // BERTH_DEVICE, CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER and the UUID of the device that its own CUDA shows. Returns
  // the exit code and both outputs.
  std::pair<int, std::string> Run(const std::string& visible, const std::vector<std::string>& options) {
    std::vector<std::string> argv = {"/bin/sh", "-c", "exec \"$BERTH\" run \"$@\" 2>&1", "sh"};
    argv.insert(argv.end(), options.begin(), options.end());
    argv.insert(argv.end(), {"--", "/bin/sh", "-c",
                             "echo $BERTH_DEVICE $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER $(\"$PROBER\" used)"});
    std::vector<std::string> environment = driver_.environment();
    environment.insert(environment.end(),
                       {absl::StrCat("BERTH=", ProgramPath("client/cli/berth")),
                        absl::StrCat("PROBER=", ProgramPath("tests/support/actor/label_prober")),
                        absl::StrCat("BERTH_FOLDER=", daemon_->folder()), "BERTH_SESSION", "BERTH_DEVICE",
                        "BERTH_VISIBLE_DEVICES", "LOCAL_RANK", "SLURM_LOCALID", "CUDA_DEVICE_ORDER",
                        absl::StrCat("CUDA_VISIBLE_DEVICES", visible == "unset" ? "" : absl::StrCat("=", visible))});
    Subprocess command = Subprocess::Start({.argv = argv, .environment = std::move(environment)});
    std::string text = command.ReadAll();
    return {command.Wait(), std::move(text)};
  }
  // Expects that `berth run` starts its command on the device with that ordinal in PCI order, and on no other. The
  // options, the caller's environment and the command's environment name the device by its ordinal.
  void ExpectCommandUses(int device) {
    SCOPED_TRACE(absl::StrCat("device ", device));
    const std::string ordinal = absl::StrCat(device), uuid = DriverScript::UuidOf(device);
    EXPECT_EQ(Run("unset", {"--device", ordinal}).second, absl::StrCat(uuid, " ", uuid, " PCI_BUS_ID ", uuid, "\n"));
    EXPECT_EQ(Run("unset", {"--device", ordinal, "--ordinals"}).second,
              absl::StrCat(ordinal, " ", ordinal, " PCI_BUS_ID ", uuid, "\n"));
    EXPECT_EQ(Run(ordinal, {"--gpus", "1"}).second, absl::StrCat(uuid, " ", uuid, " PCI_BUS_ID ", uuid, "\n"));
  }
  // Expects that the device's worker makes blocks of that device's memory, and of no other's.
  void ExpectBlocksOn(int device) {
    SCOPED_TRACE(absl::StrCat("device ", device));
    Actor actor(*daemon_);
    driver_.Set(device, "cuMemCreate", "!2");
    EXPECT_FALSE(Ok(actor.Ask(absl::StrCat("allocate a 4096 device=", device))));
    driver_.Set(device, "cuMemCreate", "");
    EXPECT_TRUE(Ok(actor.Ask(absl::StrCat("allocate b 4096 device=", device))));
    actor.Quit();
  }

  DriverScript driver_{4};
  std::unique_ptr<TestDaemon> daemon_;
};

struct Order {
  const char* name;
  std::vector<std::string> environment;
};

class PciOrderTest : public OrdinalsTest, public ::testing::WithParamInterface<Order> {};

INSTANTIATE_TEST_SUITE_P(Environments, PciOrderTest,
                         ::testing::Values(Order{"Unset", {}},
                                           Order{"FastestFirst", {"CUDA_DEVICE_ORDER=FASTEST_FIRST"}},
                                           Order{"AllVisible", {"CUDA_VISIBLE_DEVICES=3,1,0,2"}}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(PciOrderTest, OrdinalsCountInPciOrder) {
  driver_.Set("cuda", "3 1 0 2");
  Start(GetParam().environment);
  std::vector<std::string> expected;
  for (int i = 0; i < 4; ++i) expected.push_back(absl::StrCat(i, " ", DriverScript::UuidOf(i)));
  EXPECT_EQ(Listed(), expected);
  for (uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(Becomes(i, v1::Device::READY));
  ExpectCommandUses(0);
  ExpectCommandUses(1);
  ExpectBlocksOn(0);
  ExpectBlocksOn(3);
}

class HiddenDevicesTest : public OrdinalsTest, public ::testing::WithParamInterface<Order> {};

INSTANTIATE_TEST_SUITE_P(
    Environments, HiddenDevicesTest,
    ::testing::Values(Order{"Ordinals", {"CUDA_VISIBLE_DEVICES=1,2"}},
                      Order{"OrdinalsDescending", {"CUDA_VISIBLE_DEVICES=2,1", "CUDA_DEVICE_ORDER=FASTEST_FIRST"}},
                      Order{"Uuids", {"CUDA_VISIBLE_DEVICES=GPU-00000002,GPU-00000001"}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(HiddenDevicesTest, VisibleDevicesKeepNodeOrdinals) {
  driver_.Set("cuda", "3 1 0 2");
  Start(GetParam().environment);
  const std::vector<std::string> expected = {absl::StrCat("1 ", DriverScript::UuidOf(1)),
                                             absl::StrCat("2 ", DriverScript::UuidOf(2))};
  EXPECT_EQ(Listed(), expected);
  ASSERT_TRUE(Becomes(1, v1::Device::READY));
  ASSERT_TRUE(Becomes(2, v1::Device::READY));
  ExpectCommandUses(1);
  ExpectCommandUses(2);
  EXPECT_TRUE(absl::StartsWith(Run("1,2", {"--gpus", "2", "--ordinals"}).second, "1,2 1,2 PCI_BUS_ID "));
  const auto [code, text] = Run("0", {"--gpus", "1"});
  EXPECT_EQ(code, 125);
  EXPECT_TRUE(absl::StrContains(text, "CUDA_VISIBLE_DEVICES: no device 0: this node has 1 (GPU-")) << text;
  ExpectBlocksOn(1);
  ExpectBlocksOn(2);
  // The self-test finds the device, too.
  driver_.Set(2, "state", "lost");
  ASSERT_TRUE(Becomes(2, v1::Device::STOPPED));
  driver_.Set(2, "state", "");
  EXPECT_TRUE(Becomes(2, v1::Device::READY)) << DeviceOf(2).last_failure();
  EXPECT_EQ(DeviceOf(1).state(), v1::Device::READY);
}

TEST_F(OrdinalsTest, LeasesOfOtherNumberingAreNotMixedUp) {
  Start({});
  Actor holder(*daemon_);
  ASSERT_TRUE(Ok(holder.Ask(absl::StrCat("acquire p device=", DriverScript::UuidOf(1)))));
  daemon_->KillSupervisorAndBroker();
  driver_.SetAll({{"0.pci", "00000000:02:00.0"}, {"1.pci", "00000000:01:00.0"}});
  daemon_->StartAgain();
  Actor other(*daemon_);
  const absl::Status refused = other.Ask("acquire q").status();
  EXPECT_TRUE(Refused(refused, Reason::kLedgerUnreadable)) << refused;
  const std::string why = absl::StrCat("device 0 was ", DriverScript::UuidOf(0), " and is ", DriverScript::UuidOf(1));
  EXPECT_TRUE(absl::StrContains(refused.message(), why)) << refused;
  other.Quit();
  // Its release would wait for a daemon that resumes its session.
  holder.Kill();
}

TEST_F(OrdinalsTest, MigInstanceIsNamedByUuidOnly) {
  const std::string instance = "MIG-00000001-1111-2222-3333-444444444444";
  driver_.SetAll({{"cuda", "2 1"},
                  {"1.uuid", instance},
                  {"2.uuid", "MIG-00000002-1111-2222-3333-444444444444"},
                  {"1.parent", DriverScript::UuidOf(0)},
                  {"2.parent", DriverScript::UuidOf(0)}});
  Start({absl::StrCat("CUDA_VISIBLE_DEVICES=", instance)});
  EXPECT_EQ(Listed(), std::vector<std::string>{absl::StrCat("0 ", instance)});
  ASSERT_TRUE(Becomes(0, v1::Device::READY));
  EXPECT_EQ(Run("unset", {"--device", "0"}).second,
            absl::StrCat(instance, " ", instance, " PCI_BUS_ID ", instance, "\n"));
  const auto [code, text] = Run("unset", {"--device", "0", "--ordinals"});
  EXPECT_EQ(code, 125);
  EXPECT_TRUE(absl::StrContains(text, absl::StrCat("--ordinals: device ", instance, " is a MIG instance"))) << text;
}

TEST_F(OrdinalsTest, DeviceWithoutNodeOrdinalDoesNotServe) {
  driver_.Set(2, "index", "!999");
  Start({"CUDA_VISIBLE_DEVICES=1,2"});
  // It has the lowest free ordinal.
  const std::vector<std::string> expected = {absl::StrCat("0 ", DriverScript::UuidOf(2)),
                                             absl::StrCat("1 ", DriverScript::UuidOf(1))};
  EXPECT_EQ(Listed(), expected);
  EXPECT_TRUE(Becomes(1, v1::Device::READY));
  EXPECT_EQ(DeviceOf(0).state(), v1::Device::STOPPED);
  EXPECT_EQ(DeviceOf(0).last_failure(),
            "the device failed at the daemon's start: CUDA_VISIBLE_DEVICES is set, and NVML reports no ordinal: "
            "nvmlDeviceGetIndex: an error (999)");
  EXPECT_TRUE(Ok(daemon_->inspector().EnableDevice(0)));
  const auto failed = [&] {
    return DeviceOf(0).last_failure() ==
           "the self-test failed: the device could not be read at the daemon's start: restart the daemon";
  };
  EXPECT_TRUE(Eventually(failed, kLong)) << DeviceOf(0).last_failure();
  EXPECT_EQ(DeviceOf(0).state(), v1::Device::STOPPED);
}

}  // namespace
}  // namespace berth::testing
