// A single device probe for all modules of a program, over a real daemon with host devices.

#include <memory>
#include <string>
#include <vector>

#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "berth/v1/device.pb.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/node_file.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

const std::vector<std::string> kLabels = {"bms_flex",   "survival_flex", "cubic_bspline_moments",
                                          "cubic_cell", "pirls_row",     "sphere"};

std::string UuidOf(TestDaemon& daemon, int device) {
  return Must(daemon.inspector().ListDevices()).devices(device).uuid();
}

TEST(ProbeTest, LabelsOfProgramShareDevice) {
  TestDaemon daemon({.flags = {"--host-devices=2"}});
  {
    Actor program(daemon);
    for (const std::string& label : kLabels) {
      EXPECT_EQ(program.Do(absl::StrCat("probe ", label)), UuidOf(daemon, 0) + " ready");
    }
    EXPECT_EQ(program.Do("probe sphere device=1"), UuidOf(daemon, 1) + " ready");
    EXPECT_EQ(program.Do(absl::StrCat("probe sphere uuid=", UuidOf(daemon, 1))), UuidOf(daemon, 1) + " ready");
    EXPECT_EQ(program.Do("probe sphere off"), "absent POLICY_OFF");
    EXPECT_EQ(program.Do("probe sphere required"), UuidOf(daemon, 0) + " ready");
  }
  daemon.ExpectAccountsBack();
}

TEST(ProbeTest, HostMemoryNodeOffersNoDevice) {
  TestDaemon daemon;
  std::vector<std::string> words = kLabels;
  words.insert(words.begin(), ProgramPath("tests/support/actor/label_prober"));
  Subprocess program =
      Subprocess::Start({.argv = words, .environment = {absl::StrCat("BERTH_FOLDER=", daemon.folder())}});
  for (const std::string& label : kLabels) {
    EXPECT_EQ(Must(program.ReadLine()), label + " backend: no CUDA runtime available");
  }
  EXPECT_EQ(program.Wait(), 0);
}

TEST(ProbeTest, InvalidProbeIsRejectedWithReason) {
  TestDaemon daemon;
  Actor program(daemon);
  EXPECT_TRUE(Refused(program.Ask("probe -"), Reason::kInvalidField, {{"field", "label"}, {"limit", "1"}}));
  EXPECT_TRUE(Refused(program.Ask("probe " + std::string(129, 'x') + " device=5"), Reason::kNotFound,
                      {{"label", std::string(128, 'x')}}));
  EXPECT_TRUE(Refused(program.Ask("probe sphere device=5"), Reason::kNotFound,
                      {{"kind", "device"}, {"id", "5"}, {"label", "sphere"}}));
  EXPECT_TRUE(Refused(program.Ask("probe sphere uuid=GPU-none"), Reason::kNotFound, {{"id", "GPU-none"}}));
}

TEST(ProbeTest, RepairedDeviceIsFoundAgain) {
  TestDaemon daemon({.flags = {"--host-devices=2"}});
  Actor program(daemon);
  const std::string first = UuidOf(daemon, 0), second = UuidOf(daemon, 1);
  EXPECT_EQ(program.Do("probe sphere"), first + " ready");
  Must(daemon.inspector().DropDevice(0));
  EXPECT_EQ(program.Do("probe sphere"), first + " ready") << "it is believed for a while";
  EXPECT_EQ(program.Do("probe sphere again"), second + " ready");
  const absl::StatusOr<std::string> gone = program.Ask("probe sphere device=0");
  EXPECT_TRUE(IsRefusal(gone.status(), Reason::kDeviceStopped)) << gone.status();
  EXPECT_EQ(gone.status().message(), "sphere backend: failed to create CUDA context for device 0");
}

TEST(ProbeTest, ProbeChoosesBestDeviceOfInventory) {
  const NodeFile node(R"(
    [[device]]
    name = "NVIDIA A10"
    capability = "8.6"
    multiprocessors = 72
    memory = "24GiB"
    [[device]]
    name = "NVIDIA H200"
    capability = "9.0"
    multiprocessors = 132
    memory = "141GiB"
  )");
  TestDaemon daemon({.flags = {node.flag()}});
  Actor program(daemon);
  EXPECT_EQ(program.Do("probe sphere"), UuidOf(daemon, 1) + " ready");
  EXPECT_EQ(program.Do("module sphere kernel"), "compiled compute_90:kernel:test 1");
  node.Now("[now.1]\nlost = true\n");
  EXPECT_TRUE(Eventually([&] { return program.Do("probe sphere again") == UuidOf(daemon, 0) + " ready"; }));
  EXPECT_EQ(program.Do("module sphere kernel"), "compiled compute_86:kernel:test 1");
}

}  // namespace
}  // namespace berth::testing
