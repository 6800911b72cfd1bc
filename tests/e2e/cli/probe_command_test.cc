// `berth probe`: a working device, an absent one, and one out of service.

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/daemon/berth_command.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

using Json = nlohmann::json;

class ProbeCommandTest : public ::testing::Test {
 protected:
  // Returns standard output and standard error of a command that fails with exit code 1.
  std::string Failure(const std::vector<std::string>& words) {
    Subprocess command = berth_.Start(words, {"/bin/sh", "-c", "exec \"$@\" 2>&1", "sh"});
    std::string text = command.ReadAll();
    EXPECT_EQ(command.Wait(), 1) << text;
    return text;
  }

  TestDaemon daemon_;
  const BerthCommand berth_{daemon_.folder()};
};

TEST_F(ProbeCommandTest, ProbeReportsWorkingDevice) {
  EXPECT_TRUE(absl::StartsWith(berth_.Show({"probe", "sphere", "--host-devices"}), "sphere backend: device 0, "));
  const Json found = berth_.ShowJson({"probe", "sphere", "--host-devices", "--device", "HOST-0"});
  EXPECT_EQ(found["label"], "sphere");
  EXPECT_EQ(found["ordinal"], 0);
  EXPECT_EQ(found["uuid"], "HOST-0");
  EXPECT_EQ(found["health"], "READY");
  EXPECT_EQ(berth_.ShowJson({"probe", "sphere", "--host-devices", "--device", "HOST"})["uuid"], "HOST-0");
}

TEST_F(ProbeCommandTest, HostMemoryIsNoDeviceUnlessAllowed) {
  constexpr char kText[] = "sphere backend: no CUDA runtime available";
  EXPECT_EQ(Failure({"probe", "sphere"}), absl::StrCat("berth: ", kText, "\n"));
  EXPECT_EQ(Failure({"probe", "sphere", "--device", "HOST-0"}), absl::StrCat("berth: ", kText, "\n"));
  Subprocess json = berth_.Start({"probe", "sphere", "--json"});
  const Json said = Json::parse(json.ReadAll(), nullptr, /*allow_exceptions=*/false);
  EXPECT_EQ(json.Wait(), 1);
  EXPECT_EQ(said["error"]["reason"], "NO_RUNTIME");
  EXPECT_EQ(said["error"]["message"], kText);
  EXPECT_NE(said["error"]["metadata"]["why"], "");
}

TEST_F(ProbeCommandTest, MissingDeviceIsNamed) {
  EXPECT_EQ(Failure({"probe", "sphere", "--device", "7"}),
            "berth: sphere backend: no device 7: `berth devices` lists those that exist\n");
  EXPECT_EQ(berth_.Run({"probe"}), 64);
}

TEST_F(ProbeCommandTest, DroppedDeviceIsReportedAsContextFailure) {
  constexpr char kText[] = "sphere backend: failed to create CUDA context for device 0";
  // No worker replaces this one after the drop.
  const pid_t worker = daemon_.workers().at(0);
  ASSERT_EQ(berth_.Run({"device", "drop", "0", "--yes"}), 0);
  ASSERT_TRUE(Eventually([&] { return !IsAlive(worker); }));
  EXPECT_EQ(Failure({"probe", "sphere", "--host-devices"}), absl::StrCat("berth: ", kText, "\n"));
  Subprocess json = berth_.Start({"probe", "sphere", "--host-devices", "--json"});
  const Json said = Json::parse(json.ReadAll(), nullptr, /*allow_exceptions=*/false);
  EXPECT_EQ(json.Wait(), 1);
  EXPECT_EQ(said["error"]["reason"], "DEVICE_STOPPED");
  EXPECT_EQ(said["error"]["message"], kText);
  EXPECT_EQ(said["error"]["metadata"]["label"], "sphere");
  EXPECT_EQ(said["error"]["metadata"]["ordinal"], "0");
}

}  // namespace
}  // namespace berth::testing
